package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/valyala/fasthttp"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/robustness/harness"
)

const (
	merchant      = "bench" // the first, and the only one unless a setting says otherwise
	feePoints     = 300
	webhookSecret = "whsec_cGF5b25jZS1iZW5jaC1wYXlvbmNlLWJlbmNo" //nolint:gosec // signs nothing but this run's webhooks
	providerKey   = "sk_test_bench"
)

// deployment is a database with merchants and stock, the external services, and the load.
// A charge ends when its merchant receives the webhook.
type deployment struct {
	*bench
	setting

	database string
	accounts []account
	external *external
	client   fasthttp.Client
	load     *load
	sent     atomic.Int64
	before   []int // what the tables held before the measurement
	filled   int   // charges that were processed before the measurement
	copied   int   // charges that the tables hold and that were never sent
}

// account is a merchant.
type account struct {
	id, key  string
	articles int
}

// measureOne measures a setting in a deployment of its own.
func (b *bench) measureOne(ctx context.Context, s setting) (taken sample, err error) {
	d, err := b.deploy(ctx, s)
	if err != nil {
		return taken, err
	}
	defer d.external.close()
	w := workNamed(s.work)
	if s.stored > 0 {
		err = d.fill(ctx, s.stored)
	}
	if err == nil && w.prepare != nil {
		err = w.prepare(ctx, d)
	}
	if err != nil {
		return taken, err
	}
	if d.before, err = d.holdings(ctx); err != nil {
		return taken, err
	}
	d.load = newLoad(s.inFlight)
	if err := waitAlone(ctx, d.database); err != nil {
		return taken, err
	}
	counted, err := readCounters(ctx, d.database)
	if err != nil {
		return taken, err
	}
	var seen window
	err = d.while(ctx, w.programs, func(of *running) error {
		written := d.record(ctx, of)
		seen, err = w.drive(ctx, d, of)
		return errors.Join(err, d.load.check(), written())
	})
	if err = errors.Join(err, waitAlone(ctx, d.database)); err != nil {
		return taken, err
	}
	after, err := readCounters(ctx, d.database)
	if err != nil {
		return taken, err
	}
	taken = newSample(seen, after.minus(counted), d.load.ended)
	return taken, errors.Join(b.printStatements(ctx, d.database), w.check(ctx, d))
}

func (b *bench) deploy(ctx context.Context, s setting) (d *deployment, err error) {
	d = &deployment{bench: b, setting: s, load: newLoad(max(1, s.inFlight)), client: fasthttp.Client{
		MaxConnsPerHost: senders, MaxIdemponentCallAttempts: 1, // a request is one request
		ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second,
	}}
	for n := range s.merchants {
		a := account{id: merchant, key: merchants.NewKey(), articles: max(articles/s.merchants, 10)}
		if n > 0 {
			a.id += "-" + strconv.Itoa(n)
		}
		d.accounts = append(d.accounts, a)
	}
	if d.database, err = b.database(ctx, s.by); err != nil {
		return nil, err
	}
	if d.external, err = openExternal(func(order string) { d.load.end(order) }); err != nil {
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
	processes []*harness.Process
	urls      []string // where charges are sent
	use       func() usage
	profiles  map[string]string // addresses, by program
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
	if d.by == byRiver {
		programs = []string{byRiver}
	}
	if err := d.start(ctx, of, programs); err != nil {
		return err
	}
	return do(of)
}

// start starts the programs with their default settings.
func (d *deployment) start(ctx context.Context, of *running, programs []string) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	var all []string
	for _, name := range programs {
		all = append(all, slices.Repeat([]string{name}, map[string]int{"api": d.apis, "worker": d.workers, byRiver: 1}[name])...)
	}
	var pids []int
	for n, name := range all {
		p, err := d.startOne(ctx, of, name, n)
		if err != nil {
			return err
		}
		of.processes, pids = append(of.processes, p), append(pids, p.PID())
		if name != "worker" {
			of.urls = append(of.urls, p.URL())
		}
		if err := p.WaitReady(ctx); err != nil {
			return err
		}
	}
	of.use = users(d.server.postmaster, pids...)
	return nil
}

// startOne starts a program, with an address for its profiles if they are wanted. Another
// connection may take the port that was free, so it is chosen anew.
func (d *deployment) startOne(ctx context.Context, of *running, name string, n int) (*harness.Process, error) {
	program := harness.Program{
		Name: fmt.Sprintf("%s-%d", name, n), Path: filepath.Join(d.programs[d.by], name), Log: d.folder,
		Env: map[string]string{
			"DATABASE_URL": d.database, "ALLOW_PRIVILEGED_DATABASE_USER": "1",
			"STRIPE_SECRET_KEY": providerKey, "STRIPE_API_BASE": d.external.url, "WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
		},
	}
	if name == byRiver {
		program.Path, program.Env[riverEnv] = d.self, "1"
	}
	for {
		if d.Profile != "" && name != byRiver {
			addr, err := freeAddress(ctx)
			if err != nil {
				return nil, err
			}
			program.Env["METRICS_ADDR"], of.profiles[program.Name] = addr, addr
		}
		p, err := harness.Start(ctx, program)
		if !errors.Is(err, harness.ErrPortTaken) {
			return p, err
		}
	}
}

// send sends a charge to each api in turn, of each merchant in turn.
func (d *deployment) send(of *running, id string) error {
	n := int(d.sent.Add(1))
	account := d.accounts[n/len(of.urls)%len(d.accounts)]
	replayed, err := d.charge(of.urls[n%len(of.urls)], account, id, rand.N(articles)) //nolint:gosec // no secret
	if err == nil && replayed {
		err = fmt.Errorf("charge %s was accepted before", id)
	}
	return err
}

// charge sends a merchant's charge with the key id, which is its order too, and returns
// whether the response was a replay.
func (d *deployment) charge(url string, of account, id string, sku int) (replayed bool, err error) {
	request, response := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(request)
	defer fasthttp.ReleaseResponse(response)
	request.SetRequestURI(url + "/v1/charges")
	request.Header.SetMethod(http.MethodPost)
	request.Header.SetContentType("application/json")
	request.Header.Set("Authorization", "Bearer "+of.key)
	request.Header.Set("Idempotency-Key", id)
	request.SetBodyString(fmt.Sprintf(`{"order_id":%q,"amount":1000,"currency":"USD","payment_method":"pm_card_visa",`+
		`"items":[{"sku":%q,"quantity":1}]}`, id, article(sku%of.articles)))
	if err := d.client.Do(request, response); err != nil {
		return false, fmt.Errorf("send charge %s: %w", id, err)
	}
	if response.StatusCode() != http.StatusAccepted {
		return false, fmt.Errorf("send charge %s: status %d: %s", id, response.StatusCode(), response.Body())
	}
	return len(response.Header.Peek("Idempotent-Replayed")) > 0, nil
}

// articles is how many a merchant sells. A charge takes one of one.
const articles = 1000

func article(n int) string { return fmt.Sprintf("sku-%03d", n%articles) }

// drive sends charges until all have ended.
func (d *deployment) drive(ctx context.Context, of *running, send func(id string) error) (window, error) {
	return d.load.drive(ctx, d.warm, d.For, of.use, send)
}
