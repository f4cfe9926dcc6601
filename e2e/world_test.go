package e2e_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/fleet"
)

// setup says what a world is made of.
type setup struct {
	apis    int
	workers int
	alone   bool   // one merchant, not two
	gated   bool   // gates stand between the workers and the outside
	told    bool   // the provider sends its events to the apis
	server  server // the shared one where zero
	stock   map[string]int

	apiEnv    map[string]string
	workerEnv map[string]string
	// apiDatabase replaces the URL by which the apis reach the database.
	apiDatabase func(url string) string
}

// world is a payonce of its own: databases, a sandbox, apis and workers, all of
// them real programs.
type world struct {
	setup
	database string            // the service's
	outside  map[string]string // the sandbox's settings
	log      string            // folder of the programs' logs
	keys     keys
	sandbox  *fleet.Process
	apis     []*fleet.Process
	workers  []*fleet.Process
	gates    *gates
	postman  *postman
	client   *client
	tables   *pgxpool.Pool
}

// keys are secrets, made for one world.
type keys struct{ api, neighbour, provider, shop, events string }

// The merchants, who speak in turn.
const (
	merchant  = "acme"
	neighbour = "globex"
)

// newWorld opens a world. When the test ends, the world is judged and closed.
func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	if s.server.at == nil {
		s.server = sharedServer(t)
	}
	w := &world{
		setup: s,
		log:   t.TempDir(),
		keys: keys{
			api:       "sk_test_merchant" + unique(),
			neighbour: "sk_test_neighbour" + unique(),
			provider:  "sk_test_provider" + unique(),
			shop:      "whsec_" + base64.StdEncoding.EncodeToString([]byte("webhooks-of-"+unique())),
			events:    "whsec_events" + unique(),
		},
		database: s.server.database(t, "service"),
	}
	outsideDatabase := s.server.database(t, "sandbox")
	w.tables = openTables(t, w.database)
	t.Cleanup(func() { w.end(t) })

	w.payonce(t, "migrate")
	w.outside = map[string]string{"DATABASE_URL": outsideDatabase, "SHOP_WEBHOOK_SECRET": w.keys.shop}
	if s.told {
		w.postman = newPostman(t)
		w.outside["STRIPE_WEBHOOK_URL"], w.outside["STRIPE_WEBHOOK_SECRET"] = w.postman.url(), w.keys.events
	}
	w.sandbox = w.start(t, "sandbox", binaries(t).Sandbox, w.outside)
	shop := w.sandbox.URL()
	if s.gated {
		w.gates = newGates(t, w.sandbox.URL(), s.workers)
		shop = w.gates.shop
	}
	w.seed(t, shop+"/shop/webhooks")
	w.startServices(t)
	return w
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
func (w *world) startServices(t *testing.T) {
	t.Helper()
	database := w.database
	if w.apiDatabase != nil {
		database = w.apiDatabase(w.database)
	}
	w.setup.apis, w.setup.workers = max(w.setup.apis, 0), max(w.setup.workers, 0)
	w.apis = make([]*fleet.Process, w.setup.apis)
	w.workers = make([]*fleet.Process, w.setup.workers)
	var all sync.WaitGroup
	for i := range w.apis {
		all.Go(func() {
			env := map[string]string{"DATABASE_URL": database, "STRIPE_WEBHOOK_SECRET": w.keys.events}
			maps.Copy(env, w.apiEnv)
			w.apis[i] = w.start(t, "api-"+strconv.Itoa(i), binaries(t).API, env)
		})
	}
	for i := range w.workers {
		all.Go(func() { w.workers[i] = w.start(t, "worker-"+strconv.Itoa(i), binaries(t).Worker, w.workerSettings(i)) })
	}
	all.Wait()
	var urls []string
	for _, p := range slices.Concat(w.apis, w.workers) {
		if p == nil {
			t.FailNow()
		}
	}
	for _, api := range w.apis {
		urls = append(urls, api.URL())
	}
	w.client = newClient(urls, w.keys.api, w.keys.neighbour)
	if w.alone {
		w.client = newClient(urls, w.keys.api)
	}
	if w.postman != nil {
		w.postman.deliverTo(urls)
	}
}

// workerSettings let a test wait seconds, not minutes, for what it breaks.
func (w *world) workerSettings(i int) map[string]string {
	provider := w.sandbox.URL()
	if w.gates != nil {
		provider = w.gates.providers[i]
	}
	env := map[string]string{
		"DATABASE_URL":        w.database,
		"STRIPE_SECRET_KEY":   w.keys.provider,
		"STRIPE_API_BASE":     provider,
		"WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
		"LEASE":               "1s",
		"BACKOFF_BASE":        "50ms",
		"BACKOFF_CAP":         "500ms",
	}
	maps.Copy(env, w.workerEnv)
	return env
}

// start starts a program and waits until it is ready. It may be called by other
// goroutines than the test's: it returns nil, and the test has failed, where the
// program did not start.
func (w *world) start(t *testing.T, name, path string, env map[string]string) *fleet.Process {
	t.Helper()
	p, err := w.launch(t.Context(), binaries(t).quiet, name, path, env)
	if err != nil {
		t.Error(err)
	}
	return p
}

func (w *world) launch(ctx context.Context, quiet, name, path string, env map[string]string) (*fleet.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	env = maps.Clone(env)
	env[quietProgram], env[quietStdout] = path, w.stdout(name)
	program := fleet.Program{Name: name, Path: quiet, Env: env, Log: w.log}
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
func (w *world) payonce(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := w.run(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *world) run(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startPatience)
	defer cancel()
	env := map[string]string{"DATABASE_URL": w.database}
	if w.sandbox != nil {
		env["STRIPE_SECRET_KEY"], env["STRIPE_API_BASE"] = w.keys.provider, w.sandbox.URL()
	}
	return fleet.Run(ctx, env, binaries(t).Payonce, args...)
}

// seed registers both merchants. Of an article that only this test has, the other
// one has nothing, so that what there is of it is counted once.
func (w *world) seed(t *testing.T, webhooks string) {
	t.Helper()
	usual := map[string]int{"tshirt": 10_000, "mug": 10_000}
	stock := maps.Clone(usual)
	maps.Copy(stock, w.stock)
	w.register(t, merchant, w.keys.api, webhooks, stock)
	if w.alone {
		return
	}
	for sku := range stock {
		if _, both := usual[sku]; !both {
			stock[sku] = 0
		}
	}
	w.register(t, neighbour, w.keys.neighbour, webhooks, stock)
}

func (w *world) register(t *testing.T, name, apiKey, webhooks string, stock map[string]int) {
	t.Helper()
	args := []string{
		"seed", "--merchant", name, "--api-key", apiKey,
		"--webhook-url", webhooks, "--webhook-secret", w.keys.shop,
	}
	for sku, quantity := range stock {
		args = append(args, "--sku", fmt.Sprintf("%s=%d", sku, quantity))
	}
	w.payonce(t, args...)
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
func (w *world) processes() []*fleet.Process {
	all := slices.Concat(w.workers, w.apis, []*fleet.Process{w.sandbox})
	return slices.DeleteFunc(all, func(p *fleet.Process) bool { return p == nil })
}

// stopPatience is the contract's: SIGTERM drains and exits within 10 s.
const stopPatience = 10 * time.Second

// stop sends SIGTERM and wants exit code 0 within the time.
func stop(t *testing.T, p *fleet.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), stopPatience)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// messagesOf shows the inbox rows of a charge, for the report of what is stuck.
func (w *world) messagesOf(t *testing.T, id string) string {
	t.Helper()
	const messages = `
select coalesce(string_agg(concat_ws(' ', receiver, status, 'attempts', attempts, 'waits', waits, last_error), '; ' order by id), 'none')
  from inbox
 where ordering_key = $1`
	return row[string](t, w, messages, id)
}

// row reads one value of the tables.
func row[T any](t *testing.T, w *world, sql string, args ...any) T {
	t.Helper()
	return rows[T](t, w, sql, args...)[0]
}

// rows reads one column of the tables. A server that restarts is waited for.
func rows[T any](t *testing.T, w *world, sql string, args ...any) []T {
	t.Helper()
	var values []T
	var err error
	ctx := context.WithoutCancel(t.Context())
	if !within(20*time.Second, func() bool {
		var found pgx.Rows
		if found, err = w.tables.Query(ctx, sql, args...); err == nil {
			values, err = pgx.CollectRows(found, pgx.RowTo[T])
		}
		return err == nil
	}) {
		t.Fatalf("%s: %v", sql, err)
	}
	return values
}
