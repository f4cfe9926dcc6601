package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/robustness/fleet"
)

const (
	merchant      = "bench" // the first, and the only one unless a setting says otherwise
	feePoints     = 300
	webhookSecret = "whsec_cGF5b25jZS1iZW5jaC1wYXlvbmNlLWJlbmNo" //nolint:gosec // signs nothing but this run's webhooks
	providerKey   = "sk_test_bench"
)

// deployment is a database with merchants and stock, the external services, and the
// loop of charges. A charge ends when its merchant receives the webhook.
type deployment struct {
	*bench

	setting  setting
	database string
	accounts []account
	external *external
	client   *client
	loop     *loop
	sent     atomic.Int64
	before   []int // what the tables held before the measurement
	earlier  int   // charges that ended before the measurement
	copied   int   // charges that the tables hold and that were never sent
}

// account is a merchant.
type account struct {
	id, key  string
	articles int
}

// job is one measurement of programs.
type job struct {
	programs []string                                 // api and worker, as many as the setting says, or river
	prepare  func(context.Context, *deployment) error // before PostgreSQL's counters are read; nil for nothing
	drive    func(context.Context, *deployment, *running) (window, error)
	check    func(context.Context, *deployment) error
}

// measure does the job in a deployment of its own.
func (j job) measure(ctx context.Context, b *bench, set setting) (s Sample, err error) {
	d, err := b.deploy(ctx, set)
	if err != nil {
		return s, err
	}
	defer d.external.close()
	if set.Stored > 0 {
		err = d.fill(ctx, set.Stored)
	}
	if err == nil && j.prepare != nil {
		err = j.prepare(ctx, d)
	}
	if err != nil {
		return s, err
	}
	if d.before, err = d.holdings(ctx); err != nil {
		return s, err
	}
	d.earlier = d.loop.ended
	var api, worker Resident
	w, c, err := counted(ctx, d.database, func() (w window, err error) {
		err = d.while(ctx, j.programs, func(of *running) error {
			written := d.record(ctx, of)
			w, err = j.drive(ctx, d, of)
			api, worker = resident(of.api), resident(of.worker)
			return errors.Join(err, d.loop.check(), written())
		})
		return w, err
	})
	if err != nil {
		return s, err
	}
	w.Total = d.loop.ended - d.earlier
	s = newSample(w, c)
	s.API, s.Worker, s.Ideal = api, worker, ideal(set)
	return s, errors.Join(b.printStatements(ctx, d.database), j.check(ctx, d))
}

func (b *bench) deploy(ctx context.Context, set setting) (d *deployment, err error) {
	d = &deployment{bench: b, setting: set, client: newClient(), loop: newLoop(set.InFlight)}
	for n := range set.Merchants {
		a := account{id: merchant, key: merchants.NewKey(), articles: max(articles/set.Merchants, 10)}
		if n > 0 {
			a.id += "-" + strconv.Itoa(n)
		}
		d.accounts = append(d.accounts, a)
	}
	if d.database, err = b.database(ctx, set.Base); err != nil {
		return nil, err
	}
	if d.external, err = openExternal(time.Duration(set.Latency)*time.Millisecond, func(order string) { d.loop.end(order) }); err != nil {
		return nil, err
	}
	if err := connected(ctx, d.database, func(conn *pgx.Conn) error { return d.seed(ctx, conn) }); err != nil {
		d.external.close()
		return nil, err
	}
	return d, nil
}

func (d *deployment) seed(ctx context.Context, conn *pgx.Conn) error {
	for _, a := range d.accounts {
		b := &pgx.Batch{}
		merchants.Register(b, merchants.Merchant{ID: a.id, FeeBasisPoints: feePoints},
			merchants.Webhook{URL: d.external.url + "/shop", Secret: webhookSecret})
		merchants.AddKey(b, a.id, a.key)
		for n := range a.articles {
			fulfillment.Supply(b, a.id, article(n), 1_000_000_000)
		}
		if err := conn.SendBatch(ctx, b).Close(); err != nil {
			return fmt.Errorf("seed merchant %s: %w", a.id, err)
		}
	}
	return nil
}

// running are the programs that are measured.
type running struct {
	processes   []*fleet.Process
	urls        []string // where charges are sent
	api, worker int      // process ids, 0 for none: whose memory is measured
	use         func() usage
	profiles    map[string]string // addresses, by program
}

const startPatience = 30 * time.Second

// while runs programs while do does something.
func (d *deployment) while(ctx context.Context, programs []string, do func(*running) error) (err error) {
	of := &running{profiles: map[string]string{}}
	defer func() { // the programs finish what they have begun
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
		defer cancel()
		for _, p := range of.processes {
			err = errors.Join(err, p.Stop(within))
		}
	}()
	if err := d.start(ctx, of, programs); err != nil {
		return err
	}
	return do(of)
}

// start starts the programs with their default settings, unless the deployment's setting
// says otherwise.
func (d *deployment) start(ctx context.Context, of *running, programs []string) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	var all []string
	for _, name := range programs {
		all = append(all, slices.Repeat([]string{name}, map[string]int{"api": d.setting.APIs, "worker": d.setting.Workers, "river": 1}[name])...)
	}
	var pids []int
	for n, name := range all {
		env := map[string]string{
			"DATABASE_URL": d.database, "ALLOW_PRIVILEGED_DATABASE_USER": "1", "STRIPE_SECRET_KEY": providerKey, "STRIPE_API_BASE": d.external.url,
			"WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
		}
		if name == "river" {
			env[childEnv] = name
		}
		if d.setting.Slots > 0 {
			env["WORKER_CONCURRENCY"] = strconv.Itoa(d.setting.Slots)
		}
		program := fleet.Program{
			Name: fmt.Sprintf("%s-%d", name, n), Path: cmp.Or(d.trees[d.setting.Base][name], d.self), Log: d.folder, Env: env,
		}
		p, err := d.startOne(ctx, of, program, d.Profile != "" && name != "river")
		if err != nil {
			return err
		}
		of.processes, pids = append(of.processes, p), append(pids, p.PID())
		if name != "worker" {
			of.urls = append(of.urls, p.URL())
		}
		if name == "api" {
			of.api = p.PID()
		} else {
			of.worker = p.PID()
		}
		if err := p.WaitReady(ctx); err != nil {
			return err
		}
	}
	of.use = users(d.server.postmaster, pids...)
	return nil
}

// startOne starts a program, with an address for its profiles if it has any. Another connection
// may take the port that was free, so it is chosen anew.
func (d *deployment) startOne(ctx context.Context, of *running, program fleet.Program, profiled bool) (*fleet.Process, error) {
	for {
		if profiled {
			addr, err := freeAddress(ctx)
			if err != nil {
				return nil, err
			}
			program.Env["METRICS_ADDR"], of.profiles[program.Name] = addr, addr
		}
		p, err := fleet.Start(ctx, program)
		if !errors.Is(err, fleet.ErrPortTaken) {
			return p, err
		}
	}
}

// send sends a charge to each api in turn, of each merchant in turn.
func (d *deployment) send(of *running, id string) error {
	n := int(d.sent.Add(1))
	account := d.accounts[n/len(of.urls)%len(d.accounts)]
	replayed, err := d.client.charge(of.urls[n%len(of.urls)], account, id, rand.N(articles)) //nolint:gosec // no secret
	if err == nil && replayed {
		err = fmt.Errorf("charge %s was accepted before", id)
	}
	return err
}

// drive sends charges until all have ended.
func (d *deployment) drive(ctx context.Context, of *running, send func(id string) error) (window, error) {
	return d.loop.drive(ctx, d.sizes.warm, d.sizes.measured, of.use, func(_ context.Context, id string) error { return send(id) })
}

// selectHoldings counts the charges, keys, events and messages. Messages that have expired
// may be deleted at any time.
const selectHoldings = `
select array[(select count(*) from ledger_events where version = 1),
             (select count(*) from idempotency_keys),
             (select count(*) from ledger_events),
             (select count(*) from outbox where created_at > now() - interval '24 hours')]`

func (d *deployment) holdings(ctx context.Context) (rows []int, err error) {
	return rows, read(ctx, d.database, selectHoldings, nil, &rows)
}
