package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// begun is a database with a charge whose payment has started.
func begun(t *testing.T) *postgres.DB {
	t.Helper()
	db := testdb.Open(t)
	record(t, db, ledger.New("ch_1"), requested("17"), domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"})
	return db
}

// stripeWith is a client of a provider that answers with these bodies, by path;
// with 503 elsewhere.
func stripeWith(t *testing.T, bodies map[string]string) *stripe.Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, known := bodies[r.URL.Path]
		if r.Method != http.MethodGet {
			t.Errorf("a timeline sends %s %s", r.Method, r.URL)
		}
		if !known {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(body)) // a client that left gets nothing
	}))
	t.Cleanup(server.Close)
	client, err := stripe.New(stripe.Config{SecretKey: "sk_test_of_a_test", Base: server.URL})
	testdb.Must(t, err)
	t.Cleanup(client.Close)
	return client
}

const (
	heldIntent = `{"id":"pi_1","object":"payment_intent","status":"succeeded","amount":1000,"amount_received":1000,"currency":"usd",
"created":1700000000,"metadata":{"charge_reference":"ch_1"}}`
	heldRefunds = `{"object":"list","has_more":false,"data":[{"id":"re_at_stripe","object":"refund","status":"failed","amount":400,
"currency":"usd","payment_intent":"pi_1","failure_reason":"lost_or_stolen_card","metadata":{"refund_id":"re_1"}}]}`
)

func TestTimeline_showsWhatTheProviderHolds(t *testing.T) {
	t.Parallel()
	db := begun(t)
	client := stripeWith(t, map[string]string{"/v1/payment_intents/pi_1": heldIntent, "/v1/refunds": heldRefunds})
	var out strings.Builder
	testdb.Must(t, (timelineCmd{Name: "ch_1", JSON: true}).show(t.Context(), newConsole(&out, io.Discard), db, client))
	var held []audit.Detail
	for _, e := range decoded[audit.Timeline](t, out.String()).Entries {
		if e.Kind == "provider" {
			e.Detail["what"] = e.What
			held = append(held, e.Detail)
		}
	}
	want := []audit.Detail{
		{
			"what": "payment_intent", "id": "pi_1", "status": "succeeded", "amount": json.Number("1000"), "amount_received": json.Number("1000"),
			"currency": "USD", "reference": "ch_1", "created": "2023-11-14T22:13:20Z",
		},
		{
			"what": "refund", "id": "re_at_stripe", "status": "failed", "amount": json.Number("400"), "currency": "USD", "reference": "re_1",
			"failure_reason": "lost_or_stolen_card",
		},
	}
	testrun.Same(t, "what the provider holds", want, held)
}

func TestTimeline_isPrintedWithoutTheProvider(t *testing.T) {
	t.Parallel()
	db := begun(t)
	for name, bodies := range map[string]map[string]string{
		"that is away":               {},
		"that does not list refunds": {"/v1/payment_intents/pi_1": heldIntent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			err := (timelineCmd{Name: "ch_1"}).show(t.Context(), newConsole(&out, io.Discard), db, stripeWith(t, bodies))
			if unavailable := (*stripe.UnavailableError)(nil); !errors.As(err, &unavailable) {
				t.Errorf("the error is %v", err)
			}
			for _, want := range []string{"ch_1  pending  1000 USD", "1 charge.requested.v1", "2 payment.started.v1"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%q is not in\n%s", want, &out)
				}
			}
		})
	}
}

// The first worker loses its connections while it holds the message, so its lease ends.
func TestTimeline_showsATakeoverAndADroppedDuplicate(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	db, lost := testdb.Connect(t, url), testdb.Connect(t, url)
	record(t, db, ledger.New("ch_1"), requested("17"))
	held, done, end := make(chan error, 2), make(chan error, 2), make(chan struct{})
	work := func(db *postgres.DB, holder string, handle inbox.Handler) {
		p, err := inbox.New(inbox.Options{
			DB: db, Receiver: "fulfillment", Holder: holder, Handle: handle, Drain: time.Millisecond, Log: slog.New(slog.DiscardHandler),
			Policy: inbox.Policy{Lease: time.Second, BackoffBase: time.Millisecond},
		})
		testdb.Must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		t.Cleanup(func() { stop(); testdb.Must(t, await.Receive(t, "the end of "+holder, ended)) })
	}
	work(lost, "host:1", func(context.Context, *inbox.Delivery) error { held <- nil; <-end; return nil })
	t.Cleanup(func() { close(end) })
	for range 2 {
		b := &pgx.Batch{}
		inbox.Append(b, "fulfillment", inbox.Message{ID: "m1", OrderingKey: "ch_1", Type: "charge.requested.v1", Payload: []byte("{}")})
		testdb.Must(t, db.Commit(t.Context(), b))
	}
	testdb.Must(t, await.Receive(t, "the first worker", held))
	lost.Close()
	work(db, "host:2", func(context.Context, *inbox.Delivery) error { done <- nil; return nil })
	testdb.Must(t, await.Receive(t, "the second worker", done))
	await.Row(t, db, `select status = 'done' from inbox`)

	var text strings.Builder
	testdb.Must(t, timelineCmd{Name: "ch_1"}.show(t.Context(), newConsole(&text, io.Discard), db, nil))
	for _, want := range []string{"duplicate ", "dropped_by=inbox_message_once", "taken over ", "holder=host:1 ", "taken_over_by=host:2 "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, &text)
		}
	}
}
