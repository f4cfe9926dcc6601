package main

import (
	"context"
	"errors"
	"fmt"
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

// account is a merchant.
type account struct {
	id, key  string
	articles int
}

// world is a database with merchants and stock, and an outside.
type world struct {
	*stage

	database string
	setting  setting
	accounts []account
	outside  *outside
	flow     *flow
	filled   int // charges that are in the tables, and were never sent
}

// open makes a world in which a charge ends when the merchant is told of it.
func (s *stage) open(ctx context.Context, set setting) (*world, error) {
	w := &world{stage: s, setting: set, flow: newFlow(set.InFlight)}
	for n := range set.Merchants {
		a := account{id: merchant, key: merchants.NewKey(), articles: max(articles/set.Merchants, 10)}
		if n > 0 {
			a.id += "-" + strconv.Itoa(n)
		}
		w.accounts = append(w.accounts, a)
	}
	var err error
	if w.database, err = s.database(ctx, set.Base); err != nil {
		return nil, err
	}
	if w.outside, err = openOutside(w.flow.end); err != nil {
		return nil, err
	}
	if err := w.seed(ctx); err != nil {
		return nil, errors.Join(err, w.outside.close())
	}
	return w, nil
}

func (w *world) close() { _ = w.outside.close() } // nobody calls any more

func (w *world) seed(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, a := range w.accounts {
		b := &pgx.Batch{}
		if err := merchants.Register(b, merchants.Merchant{ID: a.id, FeeBasisPoints: feePoints},
			merchants.Webhook{URL: w.outside.url + "/shop", Secret: webhookSecret}); err != nil {
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

const startPatience = 30 * time.Second

// start starts one of payonce's programs with its settings as they come.
func (w *world) start(ctx context.Context, name, path string, env map[string]string) (*fleet.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	env["DATABASE_URL"] = w.database
	if w.profiles != "" {
		env[profileEnv] = w.profileOf(name)
	}
	p, err := fleet.Start(ctx, fleet.Program{Name: name, Path: path, Log: w.folder, Env: env})
	if err != nil {
		return nil, err
	}
	if err := p.WaitReady(ctx); err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

func (w *world) api(ctx context.Context) (*fleet.Process, error) {
	return w.start(ctx, "api", w.tree(w.setting.Base).programs.API, map[string]string{})
}

// apis starts as many as the setting says.
func (w *world) apis(ctx context.Context) (all []*fleet.Process, err error) {
	for range w.setting.APIs {
		p, err := w.api(ctx)
		if err != nil {
			return nil, errors.Join(err, finish(ctx, all...))
		}
		all = append(all, p)
	}
	return all, nil
}

func urls(programs []*fleet.Process) (all []string) {
	for _, p := range programs {
		all = append(all, p.URL())
	}
	return all
}

func pids(programs []*fleet.Process) (all []int) {
	for _, p := range programs {
		all = append(all, p.PID())
	}
	return all
}

func (w *world) worker(ctx context.Context) (*fleet.Process, error) {
	env := map[string]string{
		"STRIPE_SECRET_KEY": providerKey, "STRIPE_API_BASE": w.outside.url, "WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
	}
	if w.setting.Slots > 0 {
		env["WORKER_CONCURRENCY"] = strconv.Itoa(w.setting.Slots)
	}
	return w.start(ctx, "worker", w.tree(w.setting.Base).programs.Worker, env)
}

// finish stops programs, which finish what they have begun.
func finish(ctx context.Context, programs ...*fleet.Process) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
	defer cancel()
	var all error
	for _, p := range programs {
		if p != nil {
			all = errors.Join(all, p.Stop(ctx))
		}
	}
	return all
}

// sending is a load of charges over HTTP, in turn of each merchant and to each api.
func (w *world) sending(urls []string, use func() usage) load {
	var clients []*client
	for _, url := range urls {
		clients = append(clients, newClient(url))
	}
	var sent atomic.Int64
	return load{
		senders: httpConnections, warm: w.sizes.warm, measured: w.sizes.measured, next: ids(), use: use,
		send: func(_ context.Context, id string) error {
			n := int(sent.Add(1))
			replayed, err := clients[n%len(clients)].charge(w.accounts[n/len(clients)%len(w.accounts)], id, anyArticle())
			if err == nil && replayed {
				err = fmt.Errorf("charge %s was accepted before", id)
			}
			return err
		},
	}
}
