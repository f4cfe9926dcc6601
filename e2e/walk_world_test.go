package e2e_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
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
	announce string
	lanes    int

	mu   sync.Mutex
	idle []*place // that the next run may use

	// While a victim is paused in a transaction, readers of the outbox see nothing
	// that commits later, in any database of the server. So one victim is paused
	// in a transaction at a time.
	pausedInTransaction sync.Mutex
}

// newGrounds makes them in an empty folder.
func newGrounds(s *server, programs, sound fleet.Binaries, dir string) (*grounds, error) {
	g := &grounds{server: s, programs: programs, sound: sound, dir: dir, announce: filepath.Join(dir, "announce"), lanes: lanes}
	return g, os.WriteFile(g.announce, []byte(announceScript), 0o755)
}

// take returns a place that is not in use, or opens one.
func (g *grounds) take(ctx context.Context) (*place, error) {
	g.mu.Lock()
	if n := len(g.idle); n > 0 {
		p := g.idle[n-1]
		g.idle = g.idle[:n-1]
		g.mu.Unlock()
		return p, nil
	}
	g.mu.Unlock()
	return g.newPlace(ctx)
}

// leave keeps a place for the next run. An audit reads everything that ever
// happened in a place, so one that had many runs is closed.
func (g *grounds) leave(ctx context.Context, p *place) error {
	if p.runs >= freshAfter || p.spoiled {
		return errors.Join(p.auditOnceMore(ctx), p.close(context.WithoutCancel(ctx)))
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
		errs = append(errs, p.auditOnceMore(ctx), p.close(ctx))
	}
	g.idle = nil
	return errors.Join(errs...)
}

// Settings that let a run wait tenths of a second for what it breaks.
const (
	walkLease   = 500 * time.Millisecond // the shortest that the worker takes
	walkBackoff = 20 * time.Millisecond
)

// place is a payonce of one lane: a database, a sandbox, an api that nothing
// happens to, and instruments before the victim.
type place struct {
	*grounds
	dir      string
	database string // URL
	keys     keys
	sandbox  *fleet.Process
	api      *fleet.Process
	watch    *failpoint.Watch // of the victim's database
	calls    *failpoint.Watch // of what a worker calls
	proxy    *failpoint.Proxy
	gate     *failpoint.Gate
	db       *postgres.DB
	drops    []string

	runs    int
	spoiled bool     // something was violated in it
	paid    []string // charges that succeeded, for refunds
}

// newPlace opens a place. Where it fails, it leaves nothing behind.
func (g *grounds) newPlace(ctx context.Context) (p *place, err error) {
	p = &place{grounds: g, keys: processKeys(), watch: failpoint.NewWatch(), calls: failpoint.NewWatch()}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close(context.WithoutCancel(ctx)))
		}
	}()
	if p.dir, err = os.MkdirTemp(g.dir, "place-"); err != nil {
		return p, err
	}
	service, provider, err := g.server.copyTemplates(ctx, g.sound)
	p.drops = []string{service, provider}
	if err != nil {
		return p, err
	}
	p.database = g.server.url(service)
	p.sandbox, err = fleet.Start(ctx, fleet.Program{
		Name: "sandbox", Path: g.programs.Sandbox, Log: p.dir, Ready: "/books",
		Env: map[string]string{"DATABASE_URL": g.server.url(provider), "SHOP_WEBHOOK_SECRET": p.keys.webhook},
	})
	if err != nil {
		return p, err
	}
	if p.proxy, err = failpoint.NewProxy(ctx, p.database, p.watch); err != nil {
		return p, err
	}
	if p.gate, err = failpoint.NewGate(ctx, p.sandbox.URL(), p.calls); err != nil {
		return p, err
	}
	p.db, err = postgres.Open(ctx, p.database, postgres.Options{Application: "walk", MaxConns: 2, AllowUnsafeDurability: true})
	if err != nil {
		return p, err
	}
	if _, err := p.db.Pool().Exec(ctx, `update merchants set webhook_url = $1`, p.gate.URL()+"/shop/webhooks"); err != nil {
		return p, err
	}
	p.api, err = fleet.Start(ctx, fleet.Program{Name: "api", Path: g.programs.API, Log: p.dir, Env: p.apiEnv(p.database)})
	if err != nil {
		return p, err
	}
	// What a program does only the first time that it meets a database, it does here.
	if _, err := p.accept(ctx, newOrder(visa)); err != nil {
		return p, err
	}
	return p, p.finishAll(ctx)
}

func (p *place) apiEnv(database string) map[string]string {
	return map[string]string{"DATABASE_URL": database, "STRIPE_WEBHOOK_SECRET": p.keys.events}
}

// workerEnv is of a worker that reaches database and provider there.
func (p *place) workerEnv(database, provider string) map[string]string {
	return map[string]string{
		"DATABASE_URL":        database,
		"STRIPE_SECRET_KEY":   "sk_test_provider",
		"STRIPE_API_BASE":     provider,
		"WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
		"WORKER_CONCURRENCY":  "1",
		"LEASE":               walkLease.String(),
		"BACKOFF_BASE":        walkBackoff.String(),
		"BACKOFF_CAP":         "200ms",
	}
}

// victim is a program whose every round trip goes through the instruments.
func (p *place) victim(program string) *victim {
	env, path := p.apiEnv(p.proxy.URL()), p.programs.API
	if program == "worker" {
		env, path = p.workerEnv(p.proxy.URL(), p.gate.URL()), p.programs.Worker
	}
	return newVictim(p.announce, p.dir, "victim-"+program, path, env)
}

// arm puts a plan before a program. An api calls nobody: what passes the gate is
// then a helper's.
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

// helper starts a worker that nothing happens to.
func (p *place) helper(ctx context.Context, concurrency string) (*fleet.Process, error) {
	env := maps.Clone(p.workerEnv(p.database, p.sandbox.URL()))
	env["WORKER_CONCURRENCY"] = concurrency
	return fleet.Start(ctx, fleet.Program{Name: "helper", Path: p.programs.Worker, Log: p.dir, Env: env})
}

// finishAll starts a worker without faults and waits until nothing is left to do.
func (p *place) finishAll(ctx context.Context) error {
	helper, err := p.helper(ctx, "16")
	if err != nil {
		return err
	}
	quiet := p.quiet(ctx, walkStall)
	if err := helper.Kill(); err != nil {
		return err
	}
	return quiet
}

func (p *place) close(ctx context.Context) error {
	var errs []error
	for _, program := range []*fleet.Process{p.api, p.sandbox} {
		if program != nil {
			if err := program.Kill(); err != nil {
				errs = append(errs, err)
			}
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
		errs = append(errs, p.server.drop(ctx, name))
	}
	return errors.Join(errs...)
}
