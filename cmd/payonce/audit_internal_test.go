package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// TestAudit_repairLeavesAPausedMerchantAlone: the ledger lacks a refund of the provider, and has
// one that is not sent. The repair of a paused merchant's charge sends nothing before the
// merchant is resumed.
func TestAudit_repairLeavesAPausedMerchantAlone(t *testing.T) {
	provider, err := sandbox.New(sandbox.Options{Now: time.Now})
	testdb.Must(t, err)
	t.Cleanup(provider.Drain)
	server := httptest.NewServer(provider)
	t.Cleanup(server.Close)
	t.Setenv("STRIPE_SECRET_KEY", "sk_test_1")
	t.Setenv("STRIPE_API_BASE", server.URL)
	client, err := stripe.New(stripe.Config{SecretKey: "sk_test_1", Base: server.URL})
	testdb.Must(t, err)
	t.Cleanup(client.Close)

	in, err := client.CreateIntent(t.Context(), "create", stripe.CreateParams{Reference: "ch_1", Amount: 1000, Currency: "USD", PaymentMethod: "pm_card_visa"})
	testdb.Must(t, err)
	_, err = client.ConfirmIntent(t.Context(), "confirm", in.ID, "")
	testdb.Must(t, err)
	missed := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/refund", strings.NewReader(`{"payment_intent":"`+in.ID+`","amount":300}`))
	provider.ServeHTTP(httptest.NewRecorder(), missed)
	refunds := func() int {
		shown := httptest.NewRecorder()
		provider.ServeHTTP(shown, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/books", http.NoBody))
		var books struct{ Refunds []any }
		testdb.Must(t, json.Unmarshal(shown.Body.Bytes(), &books))
		return len(books.Refunds)
	}

	db := testdb.Reused(t)
	record(t, db, ledger.New("ch_1"), requested("17"),
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: in.ID},
		domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: in.ID, Amount: 1000, Currency: "USD"},
		domain.ChargeSucceeded{}, domain.RefundRequested{RefundID: "re_1", Amount: 100})
	if _, said, err := execute(t, db, auditCmd{Repair: true, Quiet: true}); !errors.Is(err, errFound) || !strings.Contains(said, "of 1 charges") {
		t.Fatalf("the audit says %q: %v", said, err)
	}
	b := &pgx.Batch{}
	inbox.Append(b, fulfillment.ChargeReceiver, inbox.Message{ID: "last", Type: "stripe.refund.updated", OrderingKey: "ch_2", Partition: "other"})
	testdb.Must(t, db.Commit(t.Context(), b))

	var charge inbox.Handler
	worker := fulfillment.New(testdb.As(t, db, postgres.RoleWorker), fulfillment.Services{Provider: client}, slog.New(slog.DiscardHandler))
	for _, r := range worker.Receivers() {
		if r.Name == fulfillment.ChargeReceiver {
			charge = r.Handle
		}
	}
	last := make(chan struct{})
	p, err := inbox.New(inbox.Options{
		DB: db, Receiver: fulfillment.ChargeReceiver, Holder: "test", Concurrency: 1, Log: slog.New(slog.DiscardHandler),
		Policy: inbox.Policy{
			Lease: time.Hour, MaxAttempts: 12, GiveUpAfter: time.Hour, BackoffBase: time.Hour, BackoffCap: time.Hour, DeadLetters: inbox.Pass,
		},
		Handle: func(ctx context.Context, d *inbox.Delivery) error {
			if d.ID == "last" {
				close(last)
				return nil
			}
			return charge(ctx, d)
		},
	})
	testdb.Must(t, err)
	p.Pause(false, "acme")
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = p.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()

	await.Receive(t, "the message behind those of the repair", last)
	const observed = `select count(*) from ledger_events where type = 'refund.observed.v1'`
	if got := testdb.One[int](t, db, observed); got != 0 {
		t.Errorf("%d refunds are observed while the merchant is paused", got)
	}
	p.Pause(false)
	await.Row(t, db, `select exists (select from ledger_events where type = 'refund.observed.v1')`)
	if got := refunds(); got != 1 {
		t.Errorf("the provider has %d refunds, want the one that the ledger lacked: the pending one has a message of its own", got)
	}
}
