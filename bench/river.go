package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/webhook"
	"github.com/payonce/payonce/ledger"
)

// River as its users would run it, with the settings that were fastest here. It
// fetches again after 2 ms instead of 100, polls every 5 ms instead of being notified
// by NOTIFY, which would hold a lock of the whole server through each accepting
// commit that sends one, and completes jobs in batches, which is its default.
const (
	riverCooldown    = 2 * time.Millisecond
	riverPoll        = 5 * time.Millisecond
	riverConnections = 40
	riverWorkers     = 64
)

// riverEnv makes this program River's service.
const riverEnv = "PAYONCE_BENCH_RIVER"

// riverService is payonce's business on River: one program that accepts over HTTP and
// processes the charges as jobs. The domain, the ledger's rows, the provider's client
// and the webhooks are payonce's own; River keeps the work. The service has less to do:
// it has one merchant and checks no API key, does not validate a request, has no row
// policies and no projections.
func riverService(ctx context.Context, log *slog.Logger, environ map[string]string) error {
	db, err := postgres.Open(ctx, environ["DATABASE_URL"], postgres.Options{
		Application: "bench-river", MaxConns: riverConnections,
		Settings: map[string]string{ // River's statements may sort and join as they were written to
			"enable_bitmapscan": "on", "enable_hashjoin": "on", "enable_incremental_sort": "on", "enable_mergejoin": "on", "enable_sort": "on",
		},
	})
	if err != nil {
		return err
	}
	defer db.Close()
	provider, err := stripe.New(stripe.Config{SecretKey: providerKey, Base: environ["STRIPE_API_BASE"]})
	if err != nil {
		return err
	}
	s := &riverCharges{db: db, pool: db.Pool(), provider: provider, sender: webhook.New(webhook.Config{
		AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Now: time.Now,
	})}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[chargeJob]) error { return s.process(ctx, job.Args.ID) }))
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[webhookJob]) error { return s.notify(ctx, job.Args.ID) }))
	if s.client, err = startRiver(ctx, s.pool, workers); err != nil {
		return err
	}
	routes := http.NewServeMux()
	routes.HandleFunc("POST /v1/charges", s.accept)
	routes.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	return errors.Join(
		program.Serve(ctx, log, environ["HTTP_ADDR"], &http.Server{Handler: routes, ReadHeaderTimeout: 5 * time.Second}),
		s.client.Stop(context.WithoutCancel(ctx)))
}

type riverCharges struct {
	db       *postgres.DB
	pool     *pgxpool.Pool
	client   *river.Client[pgx.Tx]
	provider *stripe.Client
	sender   *webhook.Sender
}

// chargeJob processes a charge to its outcome, webhookJob notifies the merchant.
type (
	chargeJob  struct{ ID string }
	webhookJob struct{ ID string }
)

func (chargeJob) Kind() string  { return "charge" }
func (webhookJob) Kind() string { return "webhook" }

// accept is POST /v1/charges.
func (s *riverCharges) accept(w http.ResponseWriter, r *http.Request) {
	response, err := s.once(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	maps.Copy(w.Header(), response.Header)
	w.WriteHeader(response.StatusCode)
	_, _ = w.Write(response.Body) // the client may be gone
}

// once commits the key, the first event, its postings and the job in one transaction.
func (s *riverCharges) once(r *http.Request) (response idempotency.Answer, err error) {
	var c intake.Charge
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		return response, fmt.Errorf("decode a request: %w", err)
	}
	canonical, err := json.Marshal(c)
	if err != nil {
		return response, fmt.Errorf("encode a request: %w", err)
	}
	b, now, stream := &pgx.Batch{}, time.Now(), ledger.New("ch_"+strings.ReplaceAll(newID(), "-", ""))
	events, err := domain.Open(domain.ChargeRequested{Terms: domain.Terms{
		MerchantID: merchant, OrderID: c.OrderID, Money: domain.Money{Amount: c.Amount, Currency: domain.Currency(c.Currency)},
		Fee: domain.FeeSchedule{BasisPoints: 300}.Of(c.Amount), PaymentMethod: c.PaymentMethod, Items: c.Items,
		Description: c.Description, Metadata: c.Metadata, Notify: true,
	}})
	if err != nil {
		return response, err
	}
	if stream, err = record(b, stream, events...); err != nil {
		return response, err
	}
	response = idempotency.Answer{
		StatusCode: http.StatusAccepted,
		Header:     http.Header{"Content-Type": {"application/json"}, "Location": {"/v1/charges/" + stream.ID}},
	}
	if response.Body, err = json.Marshal(stream.Charge.View(now)); err != nil {
		return response, fmt.Errorf("encode a response: %w", err)
	}
	idempotency.Claim(b,
		idempotency.Key{Scope: merchant, Operation: "POST /v1/charges", Value: r.Header.Get("Idempotency-Key")},
		idempotency.Request{Fingerprint: idempotency.Fingerprint([]byte(merchant), canonical), Canonical: canonical},
		response, now.Add(24*time.Hour))
	return response, withJob(r.Context(), s.pool, s.client, b, chargeJob{ID: stream.ID})
}

const (
	reserve = `
with reserved as (
  insert into reservations
         (charge_id, merchant_id, sku, quantity)
  values ($1, $2, $3, $4)
)
update stock
   set available = available - $4,
       reserved  = reserved + $4
 where merchant_id = $2
   and sku = $3`

	sell = `
with ended as (
     update reservations
        set status = 'sold'
      where charge_id = $1
  returning merchant_id, sku, quantity
)
update stock s
   set reserved = reserved - quantity,
       sold     = sold + quantity
  from ended e
 where s.merchant_id = e.merchant_id
   and s.sku = e.sku`
)

// process processes a charge up to its capture, as payonce does: the stream says what
// is done, each step is a transaction, and none is open during a call. River retries
// what failed.
func (s *riverCharges) process(ctx context.Context, id string) error {
	stream, err := ledger.Load(ctx, s.db, id)
	if err != nil || stream.Charge.HasOutcome() {
		return err
	}
	b := &pgx.Batch{}
	if stream.Charge.StepStatus(domain.Inventory) == domain.StepPending {
		if stream, err = record(b, stream, domain.InventoryReserved{Items: stream.Charge.Items}); err != nil {
			return err
		}
		for _, item := range stream.Charge.Items {
			b.Queue(reserve, id, merchant, item.SKU, item.Quantity)
		}
		if err := s.db.Commit(ctx, b); err != nil {
			return err
		}
	}
	if stream, err = s.start(ctx, stream); err != nil {
		return err
	}
	attempt := stream.At(stream.Charge.AttemptVersion).ID.String()
	intent, err := s.provider.ConfirmIntent(ctx, attempt, stream.Charge.PaymentIntent, "")
	if err != nil {
		return err
	}
	// A payment that did not succeed has received nothing, which the domain refuses.
	b = &pgx.Batch{}
	stream, err = record(b, stream, stream.Charge.Capture(intent.ID, domain.Money{Amount: intent.AmountReceived, Currency: domain.Currency(intent.Currency)})...)
	if err != nil {
		return err
	}
	b.Queue(sell, stream.ID)
	return withJob(ctx, s.pool, s.client, b, webhookJob{ID: stream.ID})
}

// start makes the charge's payment intent, unless there is one.
func (s *riverCharges) start(ctx context.Context, stream ledger.Stream) (ledger.Stream, error) {
	c, b := stream.Charge, &pgx.Batch{}
	if c.PaymentStarted() {
		return stream, nil
	}
	intent, err := s.provider.CreateIntent(ctx, c.ID, stripe.CreateParams{
		Reference: c.ID, Amount: c.Amount, Currency: string(c.Currency), PaymentMethod: c.PaymentMethod,
	})
	if err != nil {
		return stream, err
	}
	if stream, err = record(b, stream, domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: intent.ID}); err != nil {
		return stream, err
	}
	return stream, s.db.Commit(ctx, b)
}

func record(b *pgx.Batch, stream ledger.Stream, events ...domain.Event) (ledger.Stream, error) {
	return ledger.Append(b, stream, ledger.Cause{CorrelationID: stream.ID, CausationID: stream.ID, Actor: "worker"}, events...)
}

// notify sends the signed webhook and records it.
func (s *riverCharges) notify(ctx context.Context, id string) error {
	stream, err := ledger.Load(ctx, s.db, id)
	if err != nil || len(stream.Charge.Unnotified) == 0 {
		return err
	}
	outcome := stream.At(stream.Charge.OutcomeVersion)
	endpoint, err := merchants.NewEndpoints(s.db, 1)(ctx, merchant)
	if err != nil {
		return err
	}
	const kind = "charge.succeeded"
	body, err := json.Marshal(map[string]any{"id": outcome.ID, "type": kind, "created_at": outcome.RecordedAt, "data": stream.View()})
	if err != nil {
		return fmt.Errorf("encode a webhook: %w", err)
	}
	if err := s.sender.Deliver(ctx, webhook.Message{
		URL: endpoint.URL, Secrets: endpoint.Secrets, ID: outcome.ID.String(), Body: body,
	}); err != nil {
		return err
	}
	b := &pgx.Batch{}
	if _, err := record(b, stream, domain.MerchantNotified{EventID: outcome.ID.String(), Type: kind, Version: outcome.Version}); err != nil {
		return err
	}
	return s.db.Commit(ctx, b)
}

// startRiver makes River's tables and starts it.
func startRiver(ctx context.Context, pool *pgxpool.Pool, workers *river.Workers) (*river.Client[pgx.Tx], error) {
	driver, quiet := riverpgxv5.New(pool), slog.New(slog.DiscardHandler) // what goes wrong is found in the counts
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet})
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("make River's tables: %w", err)
	}
	client, err := river.NewClient(driver, &river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}},
		Workers:           workers,
		FetchCooldown:     riverCooldown,
		FetchPollInterval: riverPoll,
		PollOnly:          true,
		Logger:            quiet,
	})
	if err == nil {
		err = client.Start(context.WithoutCancel(ctx)) // Stop lets it finish what it has begun
	}
	if err != nil {
		return nil, fmt.Errorf("start River: %w", err)
	}
	return client, nil
}

// withJob commits a batch and a job together. For one job this is faster than
// InsertManyFastTx, whose copy takes more round trips.
func withJob(ctx context.Context, pool *pgxpool.Pool, client *river.Client[pgx.Tx], b *pgx.Batch, job river.JobArgs) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		_, err := client.InsertTx(ctx, tx, job, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("commit with a job: %w", err)
	}
	return nil
}
