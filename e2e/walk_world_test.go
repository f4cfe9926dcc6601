package e2e_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/crash"
	"github.com/payonce/payonce/internal/fleet"
	"github.com/payonce/payonce/internal/postgres"
)

// grounds are what all worlds of a walk share: the programs, the server and the
// databases that worlds are copies of.
type grounds struct {
	server   server
	programs fleet.Binaries
	dir      string
	announce string
	service  string // database, migrated
	outside  string // database, migrated

	// While a victim stands in a transaction, nothing that is committed in any
	// database of the server becomes visible to readers of an outbox. So only one
	// of them stands at a time, and the others' clocks do not count meanwhile.
	standing sync.Mutex
	stands   atomic.Int64 // beginnings and ends; odd while one stands
}

// newGrounds makes them in an empty folder.
func newGrounds(ctx context.Context, s server, programs fleet.Binaries, dir string) (*grounds, error) {
	g := &grounds{server: s, programs: programs, dir: dir, announce: filepath.Join(dir, "announce")}
	// Written by another process than the one that forks: see buildPrograms.
	if err := os.WriteFile(g.announce, []byte(announceScript), 0o755); err != nil {
		return nil, err
	}
	g.service, g.outside = "payonce_walk_"+unique(), "payonce_walk_"+unique()
	for _, name := range []string{g.service, g.outside} {
		if err := g.command(ctx, "create database "+quoted(name)); err != nil {
			return nil, err
		}
	}
	if _, err := fleet.Run(ctx, map[string]string{"DATABASE_URL": g.url(g.service)}, programs.Payonce, "migrate"); err != nil {
		return nil, err
	}
	sandbox, err := fleet.Start(ctx, fleet.Program{
		Name: "sandbox", Path: programs.Sandbox, Log: dir, Ready: "/books",
		Env: map[string]string{"DATABASE_URL": g.url(g.outside)},
	})
	if err != nil {
		return nil, err
	}
	return g, sandbox.Stop(ctx)
}

func (g *grounds) close(ctx context.Context) error {
	return errors.Join(g.drop(ctx, g.service), g.drop(ctx, g.outside))
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

func (g *grounds) url(database string) string {
	u := *g.server.at
	u.Path, u.RawPath = "/"+database, ""
	return u.String()
}

func (g *grounds) command(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, g.server.at.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

func (g *grounds) drop(ctx context.Context, database string) error {
	return g.command(ctx, "drop database if exists "+quoted(database)+" with (force)")
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
	dir       string
	database  string // URL
	outsideDB string // URL
	key       string
	events    string // the provider's secret
	sandbox   *fleet.Process
	api       *fleet.Process
	watch     *crash.Watch // of the victim's database
	calls     *crash.Watch // of what a worker calls
	proxy     *crash.Proxy
	gate      *crash.Gate
	db        *postgres.DB
	drops     []string

	runs    int
	spoiled bool     // something was violated in it
	paid    []string // charges that succeeded, for refunds
}

// newPlace opens a place. Where it fails, it leaves nothing.
func (g *grounds) newPlace(ctx context.Context) (p *place, err error) {
	p = &place{
		grounds: g, key: "sk_test_merchant" + unique(), events: "whsec_events" + unique(), watch: crash.NewWatch(), calls: crash.NewWatch(),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close(context.WithoutCancel(ctx)))
		}
	}()
	if p.dir, err = os.MkdirTemp(g.dir, "place-"); err != nil {
		return p, err
	}
	service, outside := "payonce_walk_"+unique(), "payonce_walk_"+unique()
	for name, template := range map[string]string{service: g.service, outside: g.outside} {
		if err := g.command(ctx, "create database "+quoted(name)+" template "+quoted(template)); err != nil {
			return p, err
		}
		p.drops = append(p.drops, name)
	}
	p.database, p.outsideDB = g.url(service), g.url(outside)
	shop := "whsec_" + base64.StdEncoding.EncodeToString([]byte("webhooks-of-"+unique()))
	p.sandbox, err = fleet.Start(ctx, fleet.Program{
		Name: "sandbox", Path: g.programs.Sandbox, Log: p.dir, Ready: "/books",
		Env: map[string]string{"DATABASE_URL": p.outsideDB, "SHOP_WEBHOOK_SECRET": shop},
	})
	if err != nil {
		return p, err
	}
	if p.proxy, err = crash.NewProxy(ctx, p.database, p.watch); err != nil {
		return p, err
	}
	if p.gate, err = crash.NewGate(ctx, p.sandbox.URL(), p.calls); err != nil {
		return p, err
	}
	_, err = fleet.Run(ctx, map[string]string{"DATABASE_URL": p.database}, g.programs.Payonce,
		"seed", "--merchant", merchant, "--api-key", p.key, "--webhook-url", p.gate.URL()+"/shop/webhooks", "--webhook-secret", shop,
		"--sku", "tshirt=100000")
	if err != nil {
		return p, err
	}
	p.api, err = fleet.Start(ctx, fleet.Program{Name: "api", Path: g.programs.API, Log: p.dir, Env: p.apiEnv(p.database)})
	if err != nil {
		return p, err
	}
	p.db, err = postgres.Open(ctx, p.database, postgres.Options{Application: "walk", MaxConns: 2, AllowUnsafeDurability: true})
	if err != nil {
		return p, err
	}
	// What a program does only the first time that it meets a database, it does here.
	if _, err := p.accept(ctx, newOrder(visa)); err != nil {
		return p, err
	}
	return p, p.carry(ctx)
}

func (p *place) apiEnv(database string) map[string]string {
	return map[string]string{"DATABASE_URL": database, "STRIPE_WEBHOOK_SECRET": p.events}
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
func (p *place) arm(program string, plan *crash.Plan) {
	p.watch.Set(plan)
	if program == "worker" {
		p.calls.Set(plan)
	}
}

// disarm lets everything pass.
func (p *place) disarm() {
	p.proxy.CutAll()
	p.arm("worker", crash.NewPlan(crash.Aim{}, crash.Known{}, nil))
}

// helper starts a worker that nothing happens to.
func (p *place) helper(ctx context.Context, concurrency string) (*fleet.Process, error) {
	env := maps.Clone(p.workerEnv(p.database, p.sandbox.URL()))
	env["WORKER_CONCURRENCY"] = concurrency
	return fleet.Start(ctx, fleet.Program{Name: "helper", Path: p.programs.Worker, Log: p.dir, Env: env})
}

// carry lets a worker that nothing happens to finish what there is.
func (p *place) carry(ctx context.Context) error {
	helper, err := p.helper(ctx, "16")
	if err != nil {
		return err
	}
	quiet := p.quiet(ctx, overload)
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
		errs = append(errs, p.drop(ctx, name))
	}
	return errors.Join(errs...)
}
