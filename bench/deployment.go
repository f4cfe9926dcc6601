package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	loop     *loop
	before   holdings // what the tables held before the measurement
	earlier  int      // charges that ended before the measurement
	copied   int      // charges that the tables hold and that were never sent
	drained  Resident // a worker that was started during the measurement
}

// account is a merchant.
type account struct {
	id, key  string
	articles int
}

// job is one measurement of programs.
type job struct {
	prepare func(context.Context, *deployment) error // before PostgreSQL's counters are read; nil for nothing
	start   func(context.Context, *deployment) (*running, error)
	drive   func(context.Context, *deployment, *running) (window, error)
	check   func(context.Context, *deployment) error
}

// measure does the job in a deployment of its own.
func (j job) measure(ctx context.Context, b *bench, set setting) (s Sample, err error) {
	d, err := b.deploy(ctx, set)
	if err != nil {
		return s, err
	}
	defer d.external.close()
	if set.Stored > 0 {
		if err := d.fill(ctx, set.Stored); err != nil {
			return s, err
		}
	}
	if j.prepare != nil {
		if err := j.prepare(ctx, d); err != nil {
			return s, err
		}
	}
	if d.before, err = d.holdings(ctx); err != nil {
		return s, err
	}
	d.earlier = d.loop.ended
	var api, worker Resident
	w, c, err := counted(ctx, d.database, func() (w window, err error) {
		programs, err := j.start(ctx, d)
		if err != nil {
			return w, err
		}
		defer func() { err = errors.Join(err, programs.stop(ctx)) }()
		apiMemory, workerMemory := residents(programs.api), residents(programs.worker)
		w, err = j.drive(ctx, d, programs)
		api, worker = apiMemory(), workerMemory()
		return w, errors.Join(err, d.loop.check())
	})
	if err != nil {
		return s, err
	}
	w.Total = d.loop.ended - d.earlier
	s = newSample(w, c)
	s.API, s.Worker, s.Ideal = api, cmp.Or(d.drained, worker), ideal(set)
	return s, errors.Join(b.printStatements(ctx, d.database), j.check(ctx, d))
}

func (b *bench) deploy(ctx context.Context, set setting) (d *deployment, err error) {
	d = &deployment{bench: b, setting: set, loop: newLoop(set.InFlight)}
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
	if d.external, err = openExternal(set.Latency, func(order string) { d.loop.end(order) }); err != nil {
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
		if err := merchants.Register(b, merchants.Merchant{ID: a.id, FeeBasisPoints: feePoints},
			merchants.Webhook{URL: d.external.url + "/shop", Secret: webhookSecret}); err != nil {
			return err
		}
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
	urls        []string // of the apis
	pids        []int
	api, worker int // process ids, 0 for none: whose memory is measured
	stop        func(context.Context) error
	use         func() usage
}

// startAPIs, startBoth and startWorker start payonce's programs, with their default
// settings unless the deployment's setting says otherwise.
func startAPIs(ctx context.Context, d *deployment) (*running, error) {
	return d.start(ctx, d.setting.APIs, 0)
}

func startBoth(ctx context.Context, d *deployment) (*running, error) {
	return d.start(ctx, d.setting.APIs, 1)
}
func startWorker(ctx context.Context, d *deployment) (*running, error) { return d.start(ctx, 0, 1) }

const startPatience = 30 * time.Second

func (d *deployment) start(ctx context.Context, apis, workers int) (r *running, err error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	r = &running{}
	var all []*fleet.Process
	r.stop = func(ctx context.Context) (err error) { // the programs finish what they have begun
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
		defer cancel()
		for _, p := range all {
			err = errors.Join(err, p.Stop(ctx))
		}
		return err
	}
	programs := d.tree(d.setting.Base).programs
	for n := range apis + workers {
		name, path, env := "api", programs.API, map[string]string{"DATABASE_URL": d.database}
		if n >= apis {
			name, path = "worker", programs.Worker
			env["STRIPE_SECRET_KEY"], env["STRIPE_API_BASE"], env["WEBHOOK_ALLOW_CIDRS"] = providerKey, d.external.url, "127.0.0.0/8"
			if d.setting.Slots > 0 {
				env["WORKER_CONCURRENCY"] = strconv.Itoa(d.setting.Slots)
			}
		}
		env[profileEnv] = d.profileOf(name, n)
		p, err := fleet.Start(ctx, fleet.Program{Name: fmt.Sprintf("%s-%d", name, n), Path: path, Log: d.folder, Env: env})
		if err != nil {
			return nil, errors.Join(err, r.stop(ctx))
		}
		all = append(all, p)
		r.pids = append(r.pids, p.PID())
		if n < apis {
			r.urls, r.api = append(r.urls, p.URL()), p.PID()
		} else {
			r.worker = p.PID()
		}
		if err := p.WaitReady(ctx); err != nil {
			return nil, errors.Join(err, r.stop(ctx))
		}
	}
	r.use = users(d.server.postmaster, r.pids...)
	return r, nil
}

// load is a load of charges over HTTP: to each api in turn, and of each merchant.
func (d *deployment) load(of *running) load {
	var clients []*client
	for _, url := range of.urls {
		clients = append(clients, newClient(url))
	}
	var sent atomic.Int64
	measured := d.sizes.measured
	if d.setting.Measured > 0 {
		measured = d.setting.Measured
	}
	return load{
		senders: httpConnections, warm: d.sizes.warm, measured: measured, next: ids, use: of.use,
		send: func(_ context.Context, id string) error {
			n := int(sent.Add(1))
			merchant := d.accounts[n/len(clients)%len(d.accounts)]
			replayed, err := clients[n%len(clients)].charge(merchant, id, rand.N(articles)) //nolint:gosec // no secret
			if err == nil && replayed {
				err = fmt.Errorf("charge %s was accepted before", id)
			}
			return err
		},
	}
}

// drive drives the load until everything has ended.
func drive(ctx context.Context, d *deployment, of *running) (window, error) {
	return d.loop.drive(ctx, d.load(of))
}

// holdings are how many rows the tables hold of what was accepted.
type holdings struct{ keys, events, charges, messages int }

const countAccepted = `
select (select count(*) from idempotency_keys),
       (select count(*) from ledger_events),
       (select count(*) from ledger_events where version = 1),
       (select count(*) from outbox)`

func (d *deployment) holdings(ctx context.Context) (h holdings, err error) {
	return h, read(ctx, d.database, countAccepted, nil, &h.keys, &h.events, &h.charges, &h.messages)
}

// checkAccepted compares what the tables hold more than before with what was accepted.
// While messages are deleted they are not compared.
func (d *deployment) checkAccepted(ctx context.Context, accepted int, messages bool) error {
	now, err := d.holdings(ctx)
	if err != nil {
		return err
	}
	more := holdings{now.keys - d.before.keys, now.events - d.before.events, now.charges - d.before.charges, now.messages - d.before.messages}
	if !messages {
		more.messages = accepted
	}
	if want := (holdings{accepted, accepted, accepted, accepted}); more != want {
		return fmt.Errorf("%d accepted: %d keys, %d events of %d charges, %d messages",
			accepted, more.keys, more.events, more.charges, more.messages)
	}
	return nil
}
