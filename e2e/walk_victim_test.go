package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/payonce/payonce/internal/robustness/fleet"
)

// announceScript writes down its process id and becomes the program, so that a
// program can be killed before it has said anything.
const (
	announceScript  = "#!/bin/sh\necho $$ >\"$WALK_PID\"\nexec \"$WALK_PROGRAM\"\n"
	announcePID     = "WALK_PID"
	announceProgram = "WALK_PROGRAM"
)

// victim is a program that may be struck at any of its round trips, also before
// it listens. Whoever dies is started again, until the run is over.
type victim struct {
	program fleet.Program
	pidFile string

	strikes atomic.Int64 // that may end it
	ended   atomic.Int64 // lives that listened, and that nobody took
	over    context.CancelFunc
	gone    sync.WaitGroup

	mu      sync.Mutex
	alive   chan struct{} // closed when process is set
	process *fleet.Process
	err     error
}

// newVictim makes a victim that is not started.
func newVictim(announce, folder, name, path string, env map[string]string) *victim {
	env = maps.Clone(env)
	pidFile := filepath.Join(folder, name+".pid")
	env[announcePID], env[announceProgram] = pidFile, path
	return &victim{
		program: fleet.Program{Name: name, Path: announce, Env: env, Log: folder},
		pidFile: pidFile,
		alive:   make(chan struct{}),
	}
}

// live starts the victim, and starts it again whenever it dies.
func (v *victim) live(ctx context.Context) {
	ctx, v.over = context.WithCancel(ctx)
	v.gone.Go(func() {
		for ctx.Err() == nil {
			v.life(ctx)
		}
	})
}

func (v *victim) life(ctx context.Context) {
	_ = os.Remove(v.pidFile)
	struck := v.strikes.Load()
	p, err := fleet.Start(ctx, v.program)
	if err != nil {
		if ctx.Err() == nil && v.strikes.Load() == struck {
			v.fail(err)
			pause(ctx, 50*time.Millisecond)
		}
		return
	}
	v.set(p)
	select {
	case <-p.Exited():
		v.unset()
		if v.strikes.Load() == struck {
			v.ended.Add(1)
		}
	case <-ctx.Done():
		v.unset()
		_ = p.Kill() // it may have ended by itself
	}
}

// end kills the victim for good.
func (v *victim) end() {
	if v.over != nil {
		v.over()
	}
	v.gone.Wait()
}

func (v *victim) fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.err = errors.Join(v.err, err)
}

func (v *victim) failed() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.err
}

func (v *victim) set(p *fleet.Process) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.process = p
	close(v.alive)
}

func (v *victim) unset() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.process, v.alive = nil, make(chan struct{})
}

// url waits until the victim listens.
func (v *victim) url(ctx context.Context) (string, error) {
	for {
		v.mu.Lock()
		p, alive := v.process, v.alive
		v.mu.Unlock()
		if p != nil {
			return p.URL(), nil
		}
		select {
		case <-alive:
		case <-ctx.Done():
			return "", errors.Join(fmt.Errorf("%s does not listen: %w", v.program.Name, ctx.Err()), v.failed())
		}
	}
}

// signal signals the program itself, whether or not it listens yet. One that has
// just ended by itself is os.ErrProcessDone.
func (v *victim) signal(s syscall.Signal) error {
	text, err := os.ReadFile(v.pidFile)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, s); err != nil {
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	return nil
}

func (v *victim) kill() error {
	v.strikes.Add(1)
	return v.signal(syscall.SIGKILL)
}
