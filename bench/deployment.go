package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
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
// and the load.
type deployment struct {
	*bench
	setting
	load
	harness.World // without a sandbox: the external services are in this process

	db       *pgx.Conn // of the database
	external *external
	client   fasthttp.Client
}

// measureOne measures a setting in a deployment of its own.
func (b *bench) measureOne(ctx context.Context, s setting) (taken sample, err error) {
	d, w := &deployment{bench: b, setting: s}, workNamed(s.work)
	d.World = harness.World{Binaries: b.programs[s.by], Log: b.folder, Service: b.server.URL(databaseName)}
	d.client = fasthttp.Client{
		MaxConnsPerHost: connections, MaxConnWaitTimeout: endPatience, MaxIdemponentCallAttempts: 1, // a request is one request
		ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second,
	}
	if d.external, err = openExternal(); err != nil {
		return taken, err
	}
	defer d.external.close()
	if err := d.seed(ctx); err != nil {
		return taken, err
	}
	if d.db, err = pgx.Connect(ctx, d.Service); err != nil {
		return taken, err
	}
	defer d.db.Close(context.WithoutCancel(ctx))
	if w.prepare != nil {
		if err := d.while(ctx, 0, func() error { return w.prepare(d) }); err != nil {
			return taken, err
		}
	}
	counted, err := d.counted(ctx)
	if err != nil {
		return taken, err
	}
	var seen window
	err = d.while(ctx, w.workers, func() error {
		seen, err = d.drive(ctx, func(id string) error { return w.send(ctx, d, id) })
		return err
	})
	if err != nil {
		return taken, err
	}
	after, err := d.counted(ctx)
	if err != nil {
		return taken, err
	}
	return newSample(seen, after.minus(counted), d.ended()), d.check(ctx)
}

// articles is how many the merchant sells. A charge takes one of one.
const articles = 1000

func article(n int) string { return fmt.Sprintf("sku-%03d", n%articles) }

// seed makes the database, with the programs that are measured.
func (d *deployment) seed(ctx context.Context) error {
	if _, err := d.admin.Exec(ctx, "create database "+databaseName); err != nil {
		return err
	}
	if _, err := d.Run(ctx, "migrate"); err != nil {
		return err
	}
	args := []string{"seed", "--merchant", merchant, "--api-key", merchantKey, "--webhook-url", d.external.url + "/shop", "--webhook-secret", webhookSecret}
	for n := range articles {
		args = append(args, "--sku", article(n)+"=1000000000")
	}
	_, err := d.Run(ctx, args...)
	return err
}

const startPatience = 30 * time.Second

// while runs an api and workers while do does something. In the end they finish what they have begun.
func (d *deployment) while(ctx context.Context, workers int, do func() error) (err error) {
	if d.by == byRiver {
		workers = 0 // its one program is both
	}
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
		defer cancel()
		err = errors.Join(err, d.Stop(within))
		d.APIs, d.Workers = nil, nil
	}()
	starting, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if d.APIs, err = d.StartAll(starting, "api", d.API, 1, d.env); err != nil {
		return err
	}
	if d.Workers, err = d.StartAll(starting, "worker", d.Worker, workers, d.env); err != nil {
		return err
	}
	return do()
}

// env is the environment of a program, whose settings are the default ones.
func (d *deployment) env() map[string]string {
	env := map[string]string{
		"DATABASE_URL": d.Service, "ALLOW_PRIVILEGED_DATABASE_USER": "1",
		"STRIPE_SECRET_KEY": providerKey, "STRIPE_API_BASE": d.external.url, "WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
	}
	if d.by == byRiver {
		env[riverEnv] = "1"
	}
	return env
}

// send sends a charge that is new.
func send(_ context.Context, d *deployment, id string) error {
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
	request.SetRequestURI(d.APIs[0].URL() + "/v1/charges")
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
