package harness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
)

// World is one deployment: a sandbox, apis and workers on a database, with the
// settings by which they find one another. Its maker sets the exported fields and
// starts the programs; Stop stops them.
type World struct {
	Binaries

	Log     string // folder of the programs' logs, and of the sandbox's records
	Service string // URL of the service's database
	Secrets Secrets
	// Provider is the origin of the provider, for the operator's tool. Empty: that of Sandbox.
	Provider string
	// Env, if set, changes the settings of a program that Start starts.
	Env func(name string, env map[string]string)

	Sandbox *Process
	APIs    []*Process
	Workers []*Process
}

// Secrets are the keys that the programs of a world share.
type Secrets struct {
	API      string // of the merchant
	Provider string
	Events   string // signs the provider's webhooks
	Shop     string // signs the merchant's webhooks
}

// Setup says what Up starts.
type Setup struct {
	APIs, Workers int
	Merchant      string
	Stock         []string // of the merchant, as SKU=QUANTITY
	Events        bool     // the sandbox sends the provider's events to the first api
}

// Up migrates the database, starts the apis, the sandbox and the workers, each in the order in which
// they need one another's addresses, and seeds the merchant, whose webhooks go to the sandbox.
func (w *World) Up(ctx context.Context, s Setup) (err error) {
	if _, err = w.Run(ctx, "migrate"); err != nil {
		return err
	}
	if w.APIs, err = w.StartAll(ctx, "api", w.API, s.APIs, w.APIEnv); err != nil {
		return err
	}
	sandbox := map[string]string{"SANDBOX_FILE": filepath.Join(w.Log, "sandbox.jsonl"), "SHOP_WEBHOOK_SECRET": w.Secrets.Shop}
	if s.Events { // a provider knows one address
		sandbox["STRIPE_WEBHOOK_URL"], sandbox["STRIPE_WEBHOOK_SECRET"] = w.APIs[0].URL()+"/v1/webhooks/stripe", w.Secrets.Events
	}
	if w.Sandbox, err = w.Start(ctx, "sandbox", w.Binaries.Sandbox, sandbox); err != nil {
		return err
	}
	seed := []string{
		"seed", "--merchant", s.Merchant, "--api-key", w.Secrets.API,
		"--webhook-url", w.Sandbox.URL() + "/shop/webhooks", "--webhook-secret", w.Secrets.Shop,
	}
	for _, stock := range s.Stock {
		seed = append(seed, "--sku", stock)
	}
	if _, err = w.Run(ctx, seed...); err != nil {
		return err
	}
	w.Workers, err = w.StartAll(ctx, "worker", w.Worker, s.Workers, w.WorkerEnv)
	return err
}

// Start starts a program of the world and waits until it is ready. One that does not become
// ready is killed.
func (w *World) Start(ctx context.Context, name, path string, env map[string]string) (*Process, error) {
	if w.Env != nil {
		w.Env(name, env)
	}
	p, err := Start(ctx, Program{Name: name, Path: path, Env: env, Log: w.Log})
	if err != nil {
		return nil, err
	}
	if err := p.WaitReady(ctx); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

// privileged is set: the databases of a world are its maker's own.
const privileged = "ALLOW_PRIVILEGED_DATABASE_USER"

// APIEnv are the settings of an api.
func (w *World) APIEnv() map[string]string {
	return map[string]string{"DATABASE_URL": w.Service, privileged: "1", "STRIPE_WEBHOOK_SECRET": w.Secrets.Events}
}

// WorkerEnv are the settings of a worker, which calls the sandbox. What a fault breaks is retried
// after parts of a second, not minutes.
func (w *World) WorkerEnv() map[string]string {
	return map[string]string{
		"DATABASE_URL":        w.Service,
		privileged:            "1",
		"STRIPE_SECRET_KEY":   w.Secrets.Provider,
		"STRIPE_API_BASE":     w.Sandbox.URL(),
		"WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8", // the shop is on this machine
		"LEASE":               "1s",
		"BACKOFF_BASE":        "50ms",
		"BACKOFF_CAP":         "1s",
	}
}

// StartAll starts n programs, NAME-1 to NAME-n, all at once.
func (w *World) StartAll(ctx context.Context, name, path string, n int, env func() map[string]string) ([]*Process, error) {
	started := make([]*Process, n)
	err := atOnce(n, func(i int) (err error) {
		started[i], err = w.Start(ctx, name+"-"+strconv.Itoa(i+1), path, env())
		return err
	})
	return slices.DeleteFunc(started, func(p *Process) bool { return p == nil }), err
}

// Run runs the operator's tool on the world's database and returns its stdout.
func (w *World) Run(ctx context.Context, args ...string) ([]byte, error) {
	env := map[string]string{"DATABASE_URL": w.Service}
	provider := w.Provider
	if provider == "" && w.Sandbox != nil {
		provider = w.Sandbox.URL()
	}
	if provider != "" {
		env["STRIPE_SECRET_KEY"], env["STRIPE_API_BASE"] = w.Secrets.Provider, provider
	}
	return Run(ctx, env, w.Payonce, args...)
}

// Client returns a client of the world's apis for its merchant.
func (w *World) Client() *Client {
	var urls []string
	for _, api := range w.APIs {
		urls = append(urls, api.URL())
	}
	return NewClient(w.Secrets.API, urls...)
}

// Processes are all that were started, those first that have to stop first.
func (w *World) Processes() []*Process {
	all := slices.Concat(w.Workers, w.APIs)
	if w.Sandbox != nil {
		all = append(all, w.Sandbox)
	}
	return all
}

// Losses describe the programs that have ended and should run, with the ends of
// their logs.
func (w *World) Losses() (lost []string) {
	for _, p := range w.Processes() {
		if p.now().ended() {
			lost = append(lost, fmt.Sprintf("%s ended without a kill:\n%s", p.Name(), p.Tail()))
		}
	}
	return lost
}

// Stop stops all programs at once.
func (w *World) Stop(ctx context.Context) error {
	processes := w.Processes()
	return atOnce(len(processes), func(i int) error { return processes[i].Stop(ctx) })
}

func atOnce(n int, do func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}
