package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/webhook"
)

// shopByRiver is payonce's business as somebody would build it on River: one
// program that accepts over HTTP and carries. The domain, the ledger's rows, the
// provider's client and the webhooks are payonce's own; what differs is who keeps
// the work. It has less to do: it knows its one merchant without asking, does not
// check a request's form, has no row policies and no projections.
func shopByRiver(ctx context.Context, o order, out io.Writer) error {
	db, err := postgres.Open(ctx, o.Database, postgres.Options{Application: "bench-river", MaxConns: peerConnections})
	if err != nil {
		return err
	}
	defer db.Close()
	provider, err := stripe.New(stripe.Config{SecretKey: providerKey, Base: o.Outside})
	if err != nil {
		return err
	}
	s := &riverShop{db: db, pool: db.Pool(), provider: provider, webhook: o.Outside + "/shop", sender: webhook.New(webhook.Config{
		AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Now: time.Now,
	})}
	workers := river.NewWorkers()
	river.AddWorker(workers, &chargeWorker{shop: s})
	river.AddWorker(workers, &noticeWorker{shop: s})
	if s.client, err = startRiver(ctx, s.pool, workers, o.Workers); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(s.accept), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if err := json.NewEncoder(out).Encode("http://" + listener.Addr().String()); err != nil {
		return fmt.Errorf("say where the shop is: %w", err)
	}
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
	defer cancel()
	return errors.Join(server.Shutdown(within), s.client.Stop(within))
}

type riverShop struct {
	db       *postgres.DB
	pool     *pgxpool.Pool
	client   *river.Client[pgx.Tx]
	provider *stripe.Client
	sender   *webhook.Sender
	webhook  string
}

// chargeJob carries a charge to its outcome, noticeJob tells the merchant.
type (
	chargeJob struct {
		ID string `json:"id"`
	}
	noticeJob struct {
		ID string `json:"id"`
	}
	chargeWorker struct {
		river.WorkerDefaults[chargeJob]

		shop *riverShop
	}
	noticeWorker struct {
		river.WorkerDefaults[noticeJob]

		shop *riverShop
	}
)

func (chargeJob) Kind() string { return "charge" }
func (noticeJob) Kind() string { return "notice" }

func (w *chargeWorker) Work(ctx context.Context, job *river.Job[chargeJob]) error {
	return w.shop.carry(ctx, job.Args.ID)
}

func (w *noticeWorker) Work(ctx context.Context, job *river.Job[noticeJob]) error {
	return w.shop.tell(ctx, job.Args.ID)
}
