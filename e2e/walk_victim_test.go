package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// victim is a program that may get a fault at any of its round trips, also before it
// listens. It is started again whenever it dies, until the run is over.
type victim struct {
	program harness.Program
	stop    context.CancelFunc
	gone    sync.WaitGroup

	mu      sync.Mutex
	pid     int
	kills   int // that may end it
	ended   int // lives that listened, and that no kill ended
	process *harness.Process
	err     error
}

// victim is a program whose every round trip goes through the proxy and the gate.
func (p *testbed) victim(program string) *victim {
	env, path := p.APIEnv(), p.API
	env["DATABASE_URL"] = p.proxy.URL()
	if program == "worker" {
		env, path = p.workerSettings(p.proxy.URL(), p.gate.URL()), p.Worker
	}
	v := &victim{}
	v.program = harness.Program{
		Name: "victim-" + program, Path: path, Env: env, Log: p.Log,
		Started: func(pid int) { v.locked(func() { v.pid = pid }) },
	}
	return v
}

// live starts the victim, and starts it again whenever it dies.
func (v *victim) live(ctx context.Context) {
	ctx, v.stop = context.WithCancel(ctx)
	v.gone.Go(func() {
		for ctx.Err() == nil {
			v.life(ctx)
		}
	})
}

func (v *victim) locked(do func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	do()
}

func (v *victim) life(ctx context.Context) {
	var before int
	v.locked(func() { before = v.kills })
	p, err := harness.Start(ctx, v.program)
	if err != nil {
		v.locked(func() {
			if ctx.Err() == nil && v.kills == before {
				v.err = errors.Join(v.err, err)
			}
		})
		pause(ctx, 5*time.Millisecond)
		return
	}
	v.locked(func() { v.process = p })
	select {
	case <-p.Exited():
	case <-ctx.Done():
	}
	v.locked(func() {
		v.process = nil
		if ctx.Err() == nil && v.kills == before {
			v.ended++
		}
	})
	_ = p.Kill() // it may have ended before
}

// end kills the victim for good.
func (v *victim) end() {
	v.stop()
	v.gone.Wait()
}

// signal signals the victim, whether or not it listens yet. The error of one that had
// ended before is ESRCH.
func (v *victim) signal(s syscall.Signal) (err error) {
	v.locked(func() {
		if s == syscall.SIGKILL {
			v.kills++
		}
		err = syscall.Kill(v.pid, s)
	})
	return err
}

// url waits until the victim listens.
func (v *victim) url(ctx context.Context) (at string, err error) {
	for ctx.Err() == nil {
		v.locked(func() {
			if v.process != nil {
				at = v.process.URL()
			}
		})
		if at != "" {
			return at, nil
		}
		pause(ctx, 5*time.Millisecond)
	}
	v.locked(func() { err = v.err })
	return "", errors.Join(fmt.Errorf("%s does not listen: %w", v.program.Name, ctx.Err()), err)
}
