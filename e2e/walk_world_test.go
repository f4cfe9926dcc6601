package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/robustness/fleet"
)

// grounds are what all places of a walk share.
type grounds struct {
	server   *server
	programs fleet.Binaries // those under test; of a mutant where one is hunted
	sound    fleet.Binaries // that make the template databases
	dir      string
	lanes    int

	mu   sync.Mutex
	idle []*place // that the next run may use

	// While a victim is paused in a transaction, readers of the outbox see nothing
	// that commits later, in any database of the server. So one victim is paused
	// in a transaction at a time.
	pausedInTransaction sync.Mutex
}

// take returns a place that is not in use, or opens one.
func (g *grounds) take(ctx context.Context) (*place, error) {
	g.mu.Lock()
	if n := len(g.idle); n > 0 {
		defer g.mu.Unlock()
		p := g.idle[n-1]
		g.idle = g.idle[:n-1]
		return p, nil
	}
	g.mu.Unlock()
	return g.newPlace(ctx)
}

// leave keeps a place for the next run. An audit reads everything that ever
// happened in a place, so one that had many runs is closed.
func (g *grounds) leave(ctx context.Context, p *place) error {
	if p.runs >= freshAfter || p.spoiled {
		return p.close(context.WithoutCancel(ctx))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idle = append(g.idle, p)
	return nil
}

// close closes the places that are not in use.
func (g *grounds) close(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	for _, p := range g.idle {
		errs = append(errs, p.close(ctx))
	}
	g.idle = nil
	return errors.Join(errs...)
}

// place is a payonce of one lane: a database, a sandbox, an api without faults, and
// the proxy and the gate before the victim.
type place struct {
	fleet.World
	*grounds

	api   *fleet.Process
	watch *failpoint.Watch // of the victim's database
	calls *failpoint.Watch // of what a worker calls
	proxy *failpoint.Proxy
	gate  *failpoint.Gate
	db    *postgres.DB
	drops []string

	runs    int
	spoiled bool     // something was violated in it
	paid    []string // charges that succeeded, for refunds
}

// newPlace opens a place. Where it fails, it leaves nothing behind.
func (g *grounds) newPlace(ctx context.Context) (p *place, err error) {
	p = &place{grounds: g, watch: failpoint.NewWatch(), calls: failpoint.NewWatch()}
	p.spoiled = true // until it is open
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close(context.WithoutCancel(ctx)))
		}
	}()
	p.Binaries = g.programs
	p.Secrets, _ = processSecrets()
	if p.Log, err = os.MkdirTemp(g.dir, "place-"); err != nil {
		return p, err
	}
	service, provider, err := g.server.copyTemplates(ctx, g.sound)
	p.drops = []string{service, provider}
	if err != nil {
		return p, err
	}
	p.Service, p.Books = g.server.url(service), g.server.url(provider)
	if err := p.StartSandbox(ctx, ""); err != nil {
		return p, err
	}
	if p.proxy, err = failpoint.NewProxy(ctx, p.Service, p.watch); err != nil {
		return p, err
	}
	if p.gate, err = failpoint.NewGate(ctx, p.Sandbox.URL(), p.calls); err != nil {
		return p, err
	}
	p.db, err = postgres.Open(ctx, p.Service, postgres.Options{Application: "walk", MaxConns: 2, AllowUnsafeDurability: true})
	if err != nil {
		return p, err
	}
	if _, err := p.db.Pool().Exec(ctx, `update merchants set webhook_url = $1`, p.gate.URL()+"/shop/webhooks"); err != nil {
		return p, err
	}
	if p.api, err = p.Start(ctx, "api", p.API, p.APIEnv()); err != nil {
		return p, err
	}
	// What a program does only the first time that it meets a database, it does here.
	if _, err := p.accept(ctx, newOrder(visa)); err != nil {
		return p, err
	}
	p.spoiled = false
	return p, p.finishAll(ctx)
}

// Settings that let a run wait tenths of a second for what it breaks. The lease is
// the shortest that the worker takes.
func (p *place) workerSettings(database, provider, concurrency string) map[string]string {
	env := p.WorkerEnv(provider)
	env["DATABASE_URL"], env["WORKER_CONCURRENCY"] = database, concurrency
	env["LEASE"], env["BACKOFF_BASE"], env["BACKOFF_CAP"] = "500ms", "20ms", "200ms"
	return env
}

// victim is a program whose every round trip goes through the proxy and the gate.
func (p *place) victim(program string) *victim {
	env, path := p.APIEnv(), p.API
	env["DATABASE_URL"] = p.proxy.URL()
	if program == "worker" {
		env, path = p.workerSettings(p.proxy.URL(), p.gate.URL(), "1"), p.Worker
	}
	return newVictim(fleet.Program{Name: "victim-" + program, Path: path, Env: env, Log: p.Log})
}

// arm puts a plan before a program. An api calls no server by HTTP: what passes the
// gate is then a helper's.
func (p *place) arm(program string, plan *failpoint.Plan) {
	p.watch.Set(plan)
	if program == "worker" {
		p.calls.Set(plan)
	}
}

// disarm lets everything pass.
func (p *place) disarm() {
	p.proxy.CutAll()
	p.arm("worker", failpoint.NewPlan(failpoint.Aim{}, failpoint.Known{}, nil))
}

// helper starts a worker without faults.
func (p *place) helper(ctx context.Context, concurrency string) (*fleet.Process, error) {
	env := p.workerSettings(p.Service, p.Sandbox.URL(), concurrency)
	return fleet.Start(ctx, fleet.Program{Name: "helper", Path: p.Worker, Log: p.Log, Env: env})
}

// finishAll starts a worker without faults and waits until nothing is left to do.
func (p *place) finishAll(ctx context.Context) error {
	helper, err := p.helper(ctx, "16")
	if err != nil {
		return err
	}
	return errors.Join(p.quiet(ctx, walkStall), helper.Kill())
}

// close checks everything once more, since nothing may have happened to a run after
// it was checked, and removes the place.
func (p *place) close(ctx context.Context) (err error) {
	if !p.spoiled && p.runs > 0 {
		report, auditErr := p.audited(ctx)
		err = auditErr
		for _, c := range report.Checks {
			if c.Violated > 0 {
				err = errors.Join(err, fmt.Errorf("found only when the place was closed: %s: %q", c.Name, c.Examples))
			}
		}
	}
	for _, program := range []*fleet.Process{p.api, p.Sandbox} {
		if program != nil {
			err = errors.Join(err, program.Kill())
		}
	}
	if p.db != nil {
		p.db.Close()
	}
	if p.gate != nil {
		p.gate.Close()
	}
	if p.proxy != nil {
		p.proxy.Close()
	}
	for _, name := range p.drops {
		err = errors.Join(err, p.server.drop(ctx, name))
	}
	return err
}

// victim is a program that may be struck at any of its round trips, also before it
// listens. It is started again whenever it dies, until the run is over.
type victim struct {
	program fleet.Program

	strikes int // that may end it
	ended   int // lives that listened, and that no strike ended
	stop    context.CancelFunc
	gone    sync.WaitGroup

	mu      sync.Mutex
	pid     int
	alive   chan struct{} // closed when process is set
	process *fleet.Process
	err     error
}

// newVictim makes a victim that is not started.
func newVictim(program fleet.Program) *victim {
	v := &victim{alive: make(chan struct{})}
	program.Started = func(pid int) { v.locked(func() { v.pid = pid }) }
	v.program = program
	return v
}

func (v *victim) locked(do func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	do()
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

func (v *victim) life(ctx context.Context) {
	var before int
	v.locked(func() { before = v.strikes })
	p, err := fleet.Start(ctx, v.program)
	if err != nil {
		unexpected := false
		v.locked(func() {
			if unexpected = ctx.Err() == nil && v.strikes == before; unexpected {
				v.err = errors.Join(v.err, err)
			}
		})
		if unexpected {
			pause(ctx, 50*time.Millisecond)
		}
		return
	}
	v.locked(func() { v.process = p; close(v.alive) })
	select {
	case <-p.Exited():
	case <-ctx.Done():
	}
	v.locked(func() {
		v.process, v.alive = nil, make(chan struct{})
		if ctx.Err() == nil && v.strikes == before {
			v.ended++
		}
	})
	_ = p.Kill() // it may have ended by itself
}

// end kills the victim for good.
func (v *victim) end() {
	if v.stop != nil {
		v.stop()
	}
	v.gone.Wait()
}

// url waits until the victim listens.
func (v *victim) url(ctx context.Context) (string, error) {
	for {
		var p *fleet.Process
		var alive chan struct{}
		var err error
		v.locked(func() { p, alive, err = v.process, v.alive, v.err })
		if p != nil {
			return p.URL(), nil
		}
		select {
		case <-alive:
		case <-ctx.Done():
			return "", errors.Join(fmt.Errorf("%s does not listen: %w", v.program.Name, ctx.Err()), err)
		}
	}
}
