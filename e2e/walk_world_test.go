package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// testbed is the deployment of one run at a time, with an api without faults, and the proxy
// and the gate before the victim.
type testbed struct {
	*world
	*walker

	client *client // of the api, where a request names no other
	proxy  *failpoint.Proxy
	gate   *failpoint.Gate

	// plan is that of the victim's present life. A connection keeps the plan under which it began,
	// so requests of a killed process are not counted for its successor.
	plan atomic.Pointer[crashPlan]
	// calls is the plan of what passes the gate. An api calls no server by HTTP: beside one, that is a helper's.
	calls atomic.Pointer[crashPlan]

	runs    int
	spoiled bool     // something was violated in it
	paid    []string // charges that succeeded, for refunds
}

// attemptPatience is after how long a client takes a request for lost.
const attemptPatience = 15 * time.Second

// newTestbed opens a testbed. Where it fails, it leaves nothing behind.
func (w *walker) newTestbed(ctx context.Context) (p *testbed, err error) {
	log, err := os.MkdirTemp(w.dir, "testbed-")
	if err != nil {
		return nil, err
	}
	p = &testbed{walker: w, spoiled: true} // until it is open
	p.arm("worker", newCrashPlan(crashAim{}, nil))
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close(context.WithoutCancel(ctx)))
		}
	}()
	if p.world, err = w.on.openWorld(ctx, w.programs, log); err != nil {
		return p, err
	}
	if err := p.Up(ctx, with(1)); err != nil {
		return p, err
	}
	if p.proxy, err = failpoint.NewProxy(ctx, p.Service, func() failpoint.Hook { return p.plan.Load().round }); err != nil {
		return p, err
	}
	if p.gate, err = failpoint.NewGate(p.Sandbox.URL(), func() failpoint.CallHook { return p.calls.Load().call }); err != nil {
		return p, err
	}
	if _, err := p.tables.Exec(ctx, `update merchants set webhook_url = $1`, p.gate.URL+"/shop/webhooks"); err != nil {
		return p, err
	}
	p.client = newClient(p.Client())
	p.client.HTTP.Timeout = attemptPatience
	// What a program does only the first time that it meets a database, it does here.
	if _, err := p.client.accept(ctx, newOrder(visa)); err != nil {
		return p, err
	}
	p.spoiled = false
	return p, p.finishAll(ctx)
}

// workerSettings let a run wait tenths of a second for what it breaks. The lease is
// the shortest that the worker takes.
func (p *testbed) workerSettings(database, provider string) map[string]string {
	env := p.WorkerEnv()
	env["DATABASE_URL"], env["STRIPE_API_BASE"], env["WORKER_CONCURRENCY"] = database, provider, "1"
	env["LEASE"], env["BACKOFF_BASE"], env["BACKOFF_CAP"], env["ACTION_TIMEOUT"] = "500ms", "20ms", "200ms", "500ms"
	env["AUDIT_INTERVAL"] = "0" // its time is no point of a walk
	return env
}

// arm puts a plan before a program.
func (p *testbed) arm(program string, plan *crashPlan) {
	p.plan.Store(plan)
	if program == "worker" {
		p.calls.Store(plan)
	}
}

// disarm lets everything pass.
func (p *testbed) disarm() {
	p.proxy.CutAll()
	p.arm("worker", newCrashPlan(crashAim{}, nil))
}

// helper starts a worker without faults, with further settings.
func (p *testbed) helper(ctx context.Context, settings map[string]string) (*harness.Process, error) {
	env := p.workerSettings(p.Service, p.Sandbox.URL())
	maps.Copy(env, settings)
	return harness.Start(ctx, harness.Program{Name: "helper", Path: p.Worker, Log: p.Log, Env: env})
}

// finishAll starts a worker without faults and waits until nothing is left to do.
func (p *testbed) finishAll(ctx context.Context) error {
	helper, err := p.helper(ctx, map[string]string{"WORKER_CONCURRENCY": "16"})
	if err != nil {
		return err
	}
	return errors.Join(p.quiet(ctx, walkStall), helper.Kill())
}

// verdict is that of the world, and one more: a payment intent for each attempt. An
// intent too many takes no money, so the audit accepts it of a real provider, which
// forgets keys; the sandbox forgets none.
func (p *testbed) verdict(ctx context.Context) ([]string, error) {
	const retries = `
select count(*)
  from ledger_events r
  join ledger_events e
    on e.stream_id = r.stream_id
   and e.type = 'payment.attempt_failed.v1'
   and e.data ->> 'stage' = 'create'
 where r.version = 1
   and r.data ->> 'reference' = $1`
	violations, err := p.world.verdict(ctx)
	if err != nil {
		return violations, err
	}
	books, err := p.sandbox().Books(ctx)
	intents := map[string]int{} // by the reference of the charge
	for _, intent := range books.Intents {
		intents[intent.ChargeReference]++
	}
	for charge, n := range intents {
		retried := 0
		if n > 1 && err == nil {
			err = p.tables.QueryRow(ctx, retries, charge).Scan(&retried)
		}
		if n > 1+retried {
			violations = append(violations, fmt.Sprintf("one payment intent per attempt: %s has %d", charge, n))
		}
	}
	return violations, err
}

// close checks everything once more, since nothing may have happened to a run after
// it was checked, and removes the testbed.
func (p *testbed) close(ctx context.Context) (err error) {
	if !p.spoiled && p.runs > 0 {
		violations, unjudged := p.verdict(ctx)
		if err = unjudged; len(violations) > 0 {
			err = errors.Join(err, fmt.Errorf("found only when the testbed was closed: %q", violations))
		}
	}
	for _, process := range p.Processes() {
		err = errors.Join(err, process.Kill())
	}
	if p.gate != nil {
		p.gate.Close()
	}
	if p.proxy != nil {
		p.proxy.Close()
	}
	return errors.Join(err, p.world.close(ctx))
}

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
		env, path = p.workerSettings(p.proxy.URL(), p.gate.URL), p.Worker
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
