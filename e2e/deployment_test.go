package e2e_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/fleet"
)

// setup says what a deployment is made of. Zero values: no api, no worker, the
// shared server, two merchants.
type setup struct {
	apis           int
	workers        int
	oneMerchant    bool
	gated          bool // gates stand between the workers and the provider, and before the shop
	providerEvents bool // the provider sends its events to the apis
	server         *server
	stock          map[string]int // of the first merchant, beside 10,000 of tshirt and mug

	apiEnv    map[string]string
	workerEnv map[string]string
	// apiDatabase replaces the URL by which the apis reach the database.
	apiDatabase func(url string) string
}

// deployment is a payonce of its own: databases, a sandbox, apis and workers, all
// of them real programs.
type deployment struct {
	setup
	database   string // URL of the service's database
	sandboxEnv map[string]string
	log        string // folder of the programs' logs
	keys       keys
	sandbox    *fleet.Process
	apis       []*fleet.Process
	workers    []*fleet.Process
	gates      *gates
	forwarder  *eventForwarder
	client     *client
	tables     *pgxpool.Pool
}

// keys are the secrets of a deployment.
type keys struct{ api, neighbour, provider, webhook, events string }

// processKeys are the secrets of all deployments of this process: the template
// database holds them.
var processKeys = sync.OnceValue(func() keys {
	return keys{
		api:       "sk_test_merchant" + unique(),
		neighbour: "sk_test_neighbour" + unique(),
		provider:  "sk_test_provider" + unique(),
		webhook:   "whsec_" + base64.StdEncoding.EncodeToString([]byte("webhooks-of-"+unique())),
		events:    "whsec_events" + unique(),
	}
})

// The merchants, which send requests in turn.
const (
	merchant  = "acme"
	neighbour = "globex"
)

// deploy starts a deployment. When the test ends, every invariant is checked and
// the programs are stopped.
func deploy(t *testing.T, s setup) *deployment {
	t.Helper()
	if s.server == nil {
		s.server = sharedServer(t)
	}
	b := binaries(t)
	service, provider, err := s.server.copyTemplates(t.Context(), b.Binaries)
	if err != nil {
		t.Fatal(err)
	}
	s.server.dropAtEnd(t, service, provider)
	d := &deployment{setup: s, log: t.TempDir(), keys: processKeys(), database: s.server.url(service)}
	d.tables = openTables(t, d.database)
	t.Cleanup(func() { d.end(t) })

	d.sandboxEnv = map[string]string{"DATABASE_URL": s.server.url(provider), "SHOP_WEBHOOK_SECRET": d.keys.webhook}
	if s.providerEvents {
		d.forwarder = newEventForwarder(t)
		d.sandboxEnv["STRIPE_WEBHOOK_URL"], d.sandboxEnv["STRIPE_WEBHOOK_SECRET"] = d.forwarder.url(), d.keys.events
	}
	if d.sandbox = d.start(t, "sandbox", b.Sandbox, d.sandboxEnv); d.sandbox == nil {
		t.FailNow()
	}
	shop := d.sandbox.URL()
	if s.gated {
		d.gates = newGates(t, d.sandbox.URL(), s.workers)
		shop = d.gates.shop
	}
	d.sendWebhooksTo(t, shop)
	d.supply(t)
	d.startServices(t)
	return d
}

// sendWebhooksTo replaces the webhook URL of both merchants.
func (d *deployment) sendWebhooksTo(t *testing.T, shop string) {
	t.Helper()
	if _, err := d.tables.Exec(t.Context(), `update merchants set webhook_url = $1`, shop+"/shop/webhooks"); err != nil {
		t.Fatal(err)
	}
}

// supply sets the first merchant's stock. The other merchant has none of an
// article that only this test has.
func (d *deployment) supply(t *testing.T) {
	t.Helper()
	const stock = `
insert into stock (merchant_id, sku, supplied, available)
values ($1, $3, $4, $4), ($2, $3, case when $3 in ('tshirt', 'mug') then $4 else 0 end, case when $3 in ('tshirt', 'mug') then $4 else 0 end)
    on conflict (merchant_id, sku) do update
   set supplied = excluded.supplied,
       available = excluded.available`
	for sku, quantity := range d.stock {
		if _, err := d.tables.Exec(t.Context(), stock, merchant, neighbour, sku, int64(quantity)); err != nil {
			t.Fatal(err)
		}
	}
}

func openTables(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// startServices starts apis and workers, all at once.
func (d *deployment) startServices(t *testing.T) {
	t.Helper()
	database := d.database
	if d.apiDatabase != nil {
		database = d.apiDatabase(d.database)
	}
	d.setup.apis, d.setup.workers = max(d.setup.apis, 0), max(d.setup.workers, 0)
	d.apis = make([]*fleet.Process, d.setup.apis)
	d.workers = make([]*fleet.Process, d.setup.workers)
	var all sync.WaitGroup
	for i := range d.apis {
		all.Go(func() {
			env := map[string]string{"DATABASE_URL": database, "STRIPE_WEBHOOK_SECRET": d.keys.events}
			maps.Copy(env, d.apiEnv)
			d.apis[i] = d.start(t, "api-"+strconv.Itoa(i), binaries(t).API, env)
		})
	}
	for i := range d.workers {
		all.Go(func() { d.workers[i] = d.start(t, "worker-"+strconv.Itoa(i), binaries(t).Worker, d.workerSettings(i)) })
	}
	all.Wait()
	var urls []string
	for _, p := range slices.Concat(d.apis, d.workers) {
		if p == nil {
			t.FailNow()
		}
	}
	for _, api := range d.apis {
		urls = append(urls, api.URL())
	}
	d.client = newClient(urls, d.keys.api, d.keys.neighbour)
	if d.oneMerchant {
		d.client = newClient(urls, d.keys.api)
	}
	if d.forwarder != nil {
		d.forwarder.deliverTo(urls)
	}
}

// longLease is for tests that count attempts: a machine that stalls for longer than
// the usual second would make a worker lose its lease.
func longLease() map[string]string { return map[string]string{"LEASE": "2m"} }

// workerSettings make a worker retry and take over after a second, not minutes.
func (d *deployment) workerSettings(i int) map[string]string {
	provider := d.sandbox.URL()
	if d.gates != nil {
		provider = d.gates.providers[i]
	}
	env := map[string]string{
		"DATABASE_URL":        d.database,
		"STRIPE_SECRET_KEY":   d.keys.provider,
		"STRIPE_API_BASE":     provider,
		"WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
		"LEASE":               "1s",
		"BACKOFF_BASE":        "50ms",
		"BACKOFF_CAP":         "500ms",
	}
	maps.Copy(env, d.workerEnv)
	return env
}

// start starts a program and waits until it is ready. It may be called by other
// goroutines than the test's: it returns nil, and the test has failed, where the
// program did not start.
func (d *deployment) start(t *testing.T, name, path string, env map[string]string) *fleet.Process {
	t.Helper()
	p, err := d.launch(t.Context(), binaries(t).quiet, name, path, env)
	if err != nil {
		t.Error(err)
	}
	return p
}

func (d *deployment) launch(ctx context.Context, quiet, name, path string, env map[string]string) (*fleet.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	env = maps.Clone(env)
	env[quietProgram], env[quietStdout] = path, d.stdout(name)
	program := fleet.Program{Name: name, Path: quiet, Env: env, Log: d.log}
	if name == "sandbox" {
		program.Ready = "/books"
	}
	p, err := fleet.Start(ctx, program)
	if err != nil {
		return nil, err
	}
	if err := p.WaitReady(ctx); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// payonce runs the operator's tool and returns what it printed.
func (d *deployment) payonce(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := d.run(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (d *deployment) run(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startPatience)
	defer cancel()
	env := map[string]string{"DATABASE_URL": d.database}
	if d.sandbox != nil {
		env["STRIPE_SECRET_KEY"], env["STRIPE_API_BASE"] = d.keys.provider, d.sandbox.URL()
	}
	return fleet.Run(ctx, env, binaries(t).Payonce, args...)
}

// restart brings a program back after a kill, or anew.
func restart(t *testing.T, p *fleet.Process) {
	t.Helper()
	if err := revive(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

func revive(ctx context.Context, p *fleet.Process) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := p.Restart(ctx); err != nil {
		return err
	}
	return p.WaitReady(ctx)
}

// processes are the programs that run, those first that have to stop first.
func (d *deployment) processes() []*fleet.Process {
	all := slices.Concat(d.workers, d.apis, []*fleet.Process{d.sandbox})
	return slices.DeleteFunc(all, func(p *fleet.Process) bool { return p == nil })
}

// stopTime is the contract's: a program drains and exits within 10 s of SIGTERM.
const stopTime = 10 * time.Second

// stop sends SIGTERM and requires exit code 0. A machine that runs other work for
// most of the time is no fault of the program: it is given longer than stopTime
// where its own log shows that it did not use up its own bound, at which it
// abandons unfinished work.
func stop(t *testing.T, p *fleet.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), await.Stall)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- p.Stop(ctx) }()
	var err error
	inTime := await.Within(stopTime, func() bool {
		select {
		case err = <-stopped:
			return true
		default:
			return false
		}
	})
	if !inTime {
		err = await.Receive(t, p.Name()+" exits", stopped)
		if strings.Contains(p.Tail(), abandonsWork) {
			t.Errorf("%s did not drain within %s of SIGTERM", p.Name(), stopTime)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// abandonsWork is what a program logs that exits before it has drained.
const abandonsWork = "stopped with work unfinished"

// messagesOf shows the inbox rows of a charge, for the report of what is stuck.
func (d *deployment) messagesOf(t *testing.T, id string) string {
	t.Helper()
	const messages = `
select coalesce(string_agg(concat_ws(' ', receiver, status, 'attempts', attempts, 'waits', waits, last_error), '; ' order by id), 'none')
  from inbox
 where ordering_key = $1`
	return row[string](t, d, messages, id)
}

// row reads one value of the tables.
func row[T any](t *testing.T, d *deployment, sql string, args ...any) T {
	t.Helper()
	return rows[T](t, d, sql, args...)[0]
}

// rows reads one column of the tables. It waits for a server that restarts.
func rows[T any](t *testing.T, d *deployment, sql string, args ...any) []T {
	t.Helper()
	var values []T
	ctx := context.WithoutCancel(t.Context())
	await.Progress(t, "the database answers", func() (string, bool) {
		found, err := d.tables.Query(ctx, sql, args...)
		if err == nil {
			values, err = pgx.CollectRows(found, pgx.RowTo[T])
		}
		if refused := new(pgconn.PgError); errors.As(err, &refused) && !strings.HasPrefix(refused.Code, "57") {
			t.Fatalf("%s: %v", sql, err)
		}
		return fmt.Sprint(err), err == nil
	})
	return values
}
