package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/payonce/payonce/internal/fleet"
)

// own is a stage of the demo's own: two apis, two workers and a sandbox as child
// processes, with two databases on one server.
type own struct {
	folder   *folder
	server   server
	binaries fleet.Binaries
	apis     []*fleet.Process
	workers  []*fleet.Process
	sandbox  *fleet.Process
	database string // the service's
	keys     keys
}

// keys are made for one run.
type keys struct {
	api      string
	provider string
	events   string // signs the provider's webhooks
	shop     string
}

const (
	merchant       = "demo"
	startPatience  = 2 * time.Minute        // a program that ends is noticed at once
	killPause      = 150 * time.Millisecond // a supervisor needs a moment, too
	programsOfKind = 2
)

func openOwn(ctx context.Context, o Options, plan Plan, screen *screen) (stage, error) {
	s := &own{keys: keys{
		api:      newAPIKey(),
		provider: "sk_test_demo",
		events:   newWebhookSecret(),
		shop:     newWebhookSecret(),
	}}
	if err := s.open(ctx, o, plan, screen); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closingPatience)
		defer cancel()
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

func (s *own) open(ctx context.Context, o Options, plan Plan, screen *screen) error {
	var err error
	if s.folder, err = newFolder(os.TempDir()); err != nil {
		return err
	}
	screen.say("building api, worker, sandbox and payonce")
	if s.binaries, err = fleet.Build(ctx, s.folder.path); err != nil {
		return err
	}
	if o.Database == "" {
		screen.say("starting PostgreSQL")
	} else {
		screen.say("making two databases on the server given")
	}
	if s.server, err = openServer(ctx, o.Database); err != nil {
		return err
	}
	screen.say("starting 2 apis, 2 workers and the sandbox")
	return s.raise(ctx, plan)
}

// raise starts the programs in the order in which they need one another's
// addresses.
func (s *own) raise(ctx context.Context, plan Plan) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	var err error
	if s.database, err = s.server.create(ctx, "payonce"); err != nil {
		return err
	}
	books, err := s.server.create(ctx, "sandbox")
	if err != nil {
		return err
	}
	if _, err := s.payonce(ctx, "migrate"); err != nil {
		return err
	}
	for i := range programsOfKind {
		api, err := s.start(ctx, fleet.Program{Name: "api-" + strconv.Itoa(i+1), Path: s.binaries.API, Env: map[string]string{
			"DATABASE_URL":          s.database,
			"STRIPE_WEBHOOK_SECRET": s.keys.events,
		}})
		if err != nil {
			return err
		}
		s.apis = append(s.apis, api)
	}
	if s.sandbox, err = s.start(ctx, fleet.Program{Name: "sandbox", Path: s.binaries.Sandbox, Ready: "/books", Env: map[string]string{
		"DATABASE_URL": books,
		// Either api could take them; a provider knows one address.
		"STRIPE_WEBHOOK_URL":    s.apis[0].URL() + "/v1/webhooks/stripe",
		"STRIPE_WEBHOOK_SECRET": s.keys.events,
		"SHOP_WEBHOOK_SECRET":   s.keys.shop,
	}}); err != nil {
		return err
	}
	if err := s.seed(ctx, plan.Stock); err != nil {
		return err
	}
	for i := range programsOfKind {
		worker, err := s.start(ctx, fleet.Program{Name: "worker-" + strconv.Itoa(i+1), Path: s.binaries.Worker, Env: map[string]string{
			"DATABASE_URL":      s.database,
			"STRIPE_SECRET_KEY": s.keys.provider,
			"STRIPE_API_BASE":   s.sandbox.URL(),
			// The shop is on this machine.
			"WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
			// A demo waits seconds, not minutes, for what its faults broke.
			"LEASE":        "1s",
			"BACKOFF_BASE": "50ms",
			"BACKOFF_CAP":  "1s",
		}})
		if err != nil {
			return err
		}
		s.workers = append(s.workers, worker)
	}
	return nil
}

// start starts a program and waits until it is ready. A program that started is
// the stage's only if it is; otherwise it is gone.
func (s *own) start(ctx context.Context, program fleet.Program) (*fleet.Process, error) {
	program.Log = s.folder.path
	allowPlaintext(program.Env)
	p, err := fleet.Start(ctx, program)
	if err != nil {
		return nil, err
	}
	if err := p.WaitReady(ctx); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// allowPlaintext passes on what the user has decided about a server elsewhere.
func allowPlaintext(env map[string]string) {
	const name = "ALLOW_PLAINTEXT"
	if value, set := os.LookupEnv(name); set {
		env[name] = value
	}
}

// payonce runs the operator's tool on the stage's database.
func (s *own) payonce(ctx context.Context, args ...string) ([]byte, error) {
	env := map[string]string{"DATABASE_URL": s.database}
	if s.sandbox != nil {
		env["STRIPE_SECRET_KEY"] = s.keys.provider
		env["STRIPE_API_BASE"] = s.sandbox.URL()
	}
	allowPlaintext(env)
	return fleet.Run(ctx, env, s.binaries.Payonce, args...)
}

func (s *own) seed(ctx context.Context, stock map[string]int) error {
	args := []string{
		"seed", "--merchant", merchant, "--api-key", s.keys.api,
		"--webhook-url", s.sandbox.URL() + "/shop/webhooks", "--webhook-secret", s.keys.shop,
	}
	for _, sku := range slices.Sorted(maps.Keys(stock)) {
		args = append(args, "--sku", fmt.Sprintf("%s=%d", sku, stock[sku]))
	}
	_, err := s.payonce(ctx, args...)
	return err
}

func (s *own) house() house {
	h := house{sandbox: s.sandbox.URL(), apiKey: s.keys.api, blow: "killed"}
	for _, api := range s.apis {
		h.apis = append(h.apis, api.URL())
	}
	return h
}

func (s *own) killWorker(ctx context.Context, which int) error {
	return killAndRestart(ctx, s.workers[which%len(s.workers)])
}

func (s *own) killAPI(ctx context.Context, which int) error {
	return killAndRestart(ctx, s.apis[which%len(s.apis)])
}

func killAndRestart(ctx context.Context, p *fleet.Process) error {
	if err := p.Kill(); err != nil {
		return fmt.Errorf("%w\n%s", err, p.Tail())
	}
	if err := wait(ctx, killPause); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return p.Restart(ctx)
}

func (s *own) restartDatabase(ctx context.Context) error { return s.server.restart(ctx) }

func (s *own) audit(ctx context.Context) ([]byte, error) {
	return s.payonce(ctx, "audit", "--json")
}

func (s *own) losses() (lost []string, all int) {
	for _, p := range s.processes() {
		select {
		case <-p.Exited():
			lost = append(lost, fmt.Sprintf("%s ended by itself:\n%s", p.Name(), p.Tail()))
		default:
		}
	}
	return lost, len(s.processes())
}

// processes are the programs, those first that have to stop first.
func (s *own) processes() []*fleet.Process {
	all := slices.Concat(s.workers, s.apis)
	if s.sandbox != nil {
		all = append(all, s.sandbox)
	}
	return all
}

func (s *own) introduce(screen *screen) {
	for _, p := range s.processes() {
		screen.say("  %-10s %s", p.Name(), p.URL())
	}
	screen.say("  %-10s %s", "docs", s.apis[0].URL()+"/docs")
	screen.say("  %-10s %s", "books", s.sandbox.URL()+"/books")
	screen.say("  %-10s %s", "database", s.database)
	screen.say("  %-10s %s", "logs", s.folder.path)
	screen.say("  %-10s %s", "API key", s.keys.api)
	screen.say("everything stays up until Ctrl-C")
}

// close drains the programs all at once, then removes the databases and the
// folder.
func (s *own) close(ctx context.Context) error {
	processes := s.processes()
	errs := make([]error, len(processes))
	var all sync.WaitGroup
	for i, p := range processes {
		all.Go(func() { errs[i] = p.Stop(ctx) })
	}
	all.Wait()
	if s.server != nil {
		errs = append(errs, s.server.close(ctx))
	}
	if s.folder != nil {
		errs = append(errs, s.folder.remove())
	}
	return errors.Join(errs...)
}
