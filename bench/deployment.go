package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/payonce/payonce/internal/robustness/harness"
)

const (
	merchant      = "bench"
	merchantKey   = "sk_test_bench_7d1c5f0b9e3a4862"             //nolint:gosec // a key of this run's databases alone
	webhookSecret = "whsec_cGF5b25jZS1iZW5jaC1wYXlvbmNlLWJlbmNo" //nolint:gosec // signs nothing but this run's webhooks
	providerKey   = "sk_test_bench"
)

// deployment is a database with a merchant and stock, the external services, the programs that are measured,
// and the load. A charge ends when the merchant receives the webhook.
type deployment struct {
	*bench
	setting

	database  string
	external  *external
	client    fasthttp.Client
	load      *load
	processes []*harness.Process
	url       string // where charges are sent
	use       func() usage
	before    []int // what the tables held before the measurement
}

// measureOne measures a setting in a deployment of its own.
func (b *bench) measureOne(ctx context.Context, s setting) (taken sample, err error) {
	d, w := &deployment{bench: b, setting: s, load: &load{flying: map[string]chan<- time.Time{}}}, workNamed(s.work)
	d.client = fasthttp.Client{
		MaxConnsPerHost: connections, MaxConnWaitTimeout: endPatience, MaxIdemponentCallAttempts: 1, // a request is one request
		ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second,
	}
	if d.external, err = openExternal(func(order string) { d.load.end(order) }); err != nil {
		return taken, err
	}
	defer d.external.close()
	if err := d.seed(ctx); err != nil {
		return taken, err
	}
	if w.prepare != nil {
		if err := d.while(ctx, []string{"api"}, func() error { return w.prepare(d) }); err != nil {
			return taken, err
		}
	}
	if d.before, err = d.holdings(ctx); err != nil {
		return taken, err
	}
	counted, err := d.counted(ctx)
	if err != nil {
		return taken, err
	}
	var seen window
	err = d.while(ctx, w.programs, func() error {
		if w.send == nil {
			seen, err = d.rest(ctx)
		} else {
			seen, err = d.load.drive(ctx, s.inFlight, d.warm, d.measured, d.use, func(id string) error { return w.send(d, id) })
		}
		return errors.Join(err, d.load.check())
	})
	if err != nil {
		return taken, err
	}
	after, err := d.counted(ctx)
	if err != nil {
		return taken, err
	}
	return newSample(seen, after.minus(counted), d.load.ended), w.check(ctx, d)
}

// articles is how many the merchant sells. A charge takes one of one.
const articles = 1000

func article(n int) string { return fmt.Sprintf("sku-%03d", n%articles) }

// seed makes the database, with the programs that are measured.
func (d *deployment) seed(ctx context.Context) error {
	d.database = d.server.URL(databaseName)
	if err := d.server.CreateDatabase(ctx, databaseName); err != nil {
		return err
	}
	if _, err := d.payonce(ctx, d.by, "migrate"); err != nil {
		return err
	}
	args := []string{"seed", "--merchant", merchant, "--api-key", merchantKey, "--webhook-url", d.external.url + "/shop", "--webhook-secret", webhookSecret}
	for n := range articles {
		args = append(args, "--sku", article(n)+"=1000000000")
	}
	_, err := d.payonce(ctx, d.by, args...)
	return err
}

const startPatience = 30 * time.Second

// while runs programs while do does something. In the end they finish what they have begun.
func (d *deployment) while(ctx context.Context, programs []string, do func() error) (err error) {
	if d.by == byRiver {
		programs = []string{byRiver}
	}
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
		defer cancel()
		for _, p := range d.processes {
			err = errors.Join(err, p.Stop(within))
		}
		d.processes = nil
	}()
	var pids []int
	for _, name := range programs {
		p, err := d.start(ctx, name)
		if err != nil {
			return err
		}
		pids = append(pids, p.PID())
		if name != "worker" {
			d.url = p.URL()
		}
	}
	d.use = users(d.postmaster, pids...)
	return do()
}

// start starts a program with its default settings. This program is River's service too.
func (d *deployment) start(ctx context.Context, name string) (*harness.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	program := harness.Program{
		Name: name, Path: filepath.Join(d.programs[d.by], name), Log: d.folder,
		Env: map[string]string{
			"DATABASE_URL": d.database, "ALLOW_PRIVILEGED_DATABASE_USER": "1",
			"STRIPE_SECRET_KEY": providerKey, "STRIPE_API_BASE": d.external.url, "WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
		},
	}
	if name == byRiver {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		program.Path, program.Env[riverEnv] = self, "1"
	}
	p, err := harness.Start(ctx, program)
	if err != nil {
		return nil, err
	}
	d.processes = append(d.processes, p)
	return p, p.WaitReady(ctx)
}

// send sends a charge that is new.
func (d *deployment) send(id string) error {
	replayed, err := d.charge(id, rand.N(articles)) //nolint:gosec // no secret
	if err == nil && replayed {
		err = fmt.Errorf("charge %s was accepted before", id)
	}
	return err
}

// charge sends a charge with the key id, which is its order too, and returns whether the response was a replay.
func (d *deployment) charge(id string, sku int) (replayed bool, err error) {
	request, response := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(request)
	defer fasthttp.ReleaseResponse(response)
	request.SetRequestURI(d.url + "/v1/charges")
	request.Header.SetMethod(http.MethodPost)
	request.Header.SetContentType("application/json")
	request.Header.Set("Authorization", "Bearer "+merchantKey)
	request.Header.Set("Idempotency-Key", id)
	request.SetBodyString(fmt.Sprintf(`{"order_id":%q,"amount":1000,"currency":"USD","payment_method":"pm_card_visa",`+
		`"items":[{"sku":%q,"quantity":1}]}`, id, article(sku)))
	if err := d.client.Do(request, response); err != nil {
		return false, fmt.Errorf("send charge %s: %w", id, err)
	}
	if response.StatusCode() != http.StatusAccepted {
		return false, fmt.Errorf("send charge %s: status %d: %s", id, response.StatusCode(), response.Body())
	}
	return len(response.Header.Peek("Idempotent-Replayed")) > 0, nil
}
