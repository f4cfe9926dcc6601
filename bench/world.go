package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/fleet"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
)

const (
	merchant      = "bench"
	feePoints     = 300
	webhookSecret = "whsec_cGF5b25jZS1iZW5jaC1wYXlvbmNlLWJlbmNo" //nolint:gosec // signs nothing but this run's webhooks
	providerKey   = "sk_test_bench"
)

// world is a database with a merchant and stock, and an outside.
type world struct {
	*stage

	database string
	key      string // the merchant's
	outside  *outside
	flow     *flow
	places   int // of a worker; 0: as many as it has unless it is told
	filled   int // charges that are in the tables, and were never sent
}

// open makes a world in which a charge ends when the merchant is told of it.
func (s *stage) open(ctx context.Context, inFlight int) (*world, error) {
	w := &world{stage: s, key: merchants.NewKey(), flow: newFlow(inFlight)}
	var err error
	if w.database, err = s.database(ctx); err != nil {
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
	db, err := postgres.Open(ctx, w.database, postgres.Options{Application: "bench-seed"})
	if err != nil {
		return err
	}
	defer db.Close()
	b := &pgx.Batch{}
	if err := merchants.Register(b, merchants.Merchant{ID: merchant, FeeBasisPoints: feePoints},
		merchants.Webhook{URL: w.outside.url + "/shop", Secret: webhookSecret}); err != nil {
		return err
	}
	merchants.AddKey(b, merchant, w.key)
	for n := range articles {
		fulfillment.Supply(b, merchant, article(n), 1_000_000_000)
	}
	return db.Commit(ctx, b)
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
	return w.start(ctx, "api", w.programs.API, map[string]string{})
}

func (w *world) worker(ctx context.Context) (*fleet.Process, error) {
	env := map[string]string{
		"STRIPE_SECRET_KEY": providerKey, "STRIPE_API_BASE": w.outside.url, "WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8",
	}
	if w.places > 0 {
		env["WORKER_CONCURRENCY"] = strconv.Itoa(w.places)
	}
	return w.start(ctx, "worker", w.programs.Worker, env)
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

// sending is a load of charges over HTTP.
func (w *world) sending(url string, use func() usage) load {
	c := newClient(url, w.key)
	return load{
		senders: httpConnections, warm: w.sizes.warm, measured: w.sizes.measured, next: ids(), use: use,
		send: func(_ context.Context, id string) error {
			replayed, err := c.charge(id, anyArticle())
			if err == nil && replayed {
				err = fmt.Errorf("charge %s was accepted before", id)
			}
			return err
		},
	}
}
