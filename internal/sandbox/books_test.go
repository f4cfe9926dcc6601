package sandbox_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/internal/sandbox"
)

func TestBooks(t *testing.T) {
	t.Parallel()

	t.Run("they are empty lists before anything happened", func(t *testing.T) {
		t.Parallel()
		w := start(t, sandbox.Options{})
		want := map[string]any{
			"intents": []any{}, "captures": []any{}, "refunds": []any{}, "notifications": []any{},
			"requests": 0.0, "duplicates_suppressed": 0.0,
		}
		if diff := cmp.Diff(want, w.control(http.MethodGet, "/books", "").object); diff != "" {
			t.Errorf("books (-want +got):\n%s", diff)
		}
	})

	t.Run("they show what happened under the callers' references", func(t *testing.T) {
		t.Parallel()
		w := start(t, sandbox.Options{ShopSecret: shopSecret})
		id := w.captured("pm_card_visa")
		for range 3 {
			w.post("/v1/refunds", "r", "payment_intent", id, "amount", "400", "metadata[refund_id]", "re_1")
		}
		open := w.post("/v1/payment_intents", "", "amount", "5", "currency", "USD").text("id")
		for range 2 {
			w.must(w.notify("msg_1", notice("ch_1")))
		}
		want := map[string]any{
			"intents": []any{
				map[string]any{"reference": "ch_1", "id": id, "status": "succeeded", "amount": 1000.0, "currency": "eur", "captures": 1.0},
				map[string]any{"reference": "", "id": open, "status": "requires_payment_method", "amount": 5.0, "currency": "usd", "captures": 0.0},
			},
			"captures": []any{map[string]any{"reference": "ch_1", "payment_intent": id, "amount": 1000.0, "currency": "eur"}},
			"refunds":  []any{map[string]any{"reference": "re_1", "payment_intent": id, "amount": 400.0}},
			"notifications": []any{map[string]any{
				"webhook_id": "msg_1", "reference": "ch_1", "type": "charge.succeeded", "deliveries": 2.0, "effects": 1.0,
			}},
			"requests": 6.0, "duplicates_suppressed": 2.0,
		}
		if diff := cmp.Diff(want, w.control(http.MethodGet, "/books", "").object); diff != "" {
			t.Errorf("books (-want +got):\n%s", diff)
		}
	})

	t.Run("a double capture would be seen", func(t *testing.T) {
		t.Parallel()
		w := start(t, sandbox.Options{})
		id := w.captured("pm_card_visa")
		w.exec(`insert into captures (id, payment_intent, amount, currency) values ('ch_second', $1, 1000, 'eur')`, id)
		if b := w.books(); len(b.Captures) != 2 || b.Intents[0].Captures != 2 {
			t.Errorf("books %+v", b)
		}
	})

	t.Run("a processing intent that is due is settled in them", func(t *testing.T) {
		t.Parallel()
		w := start(t, sandbox.Options{ProcessingTime: time.Hour})
		w.post("/v1/payment_intents/"+w.create("pm_card_processing")+"/confirm", "")
		if b := w.books(); b.Intents[0].Status != "processing" || len(b.Captures) != 0 {
			t.Errorf("early: %+v", b)
		}
		w.exec(`update payment_intents set settle_at = clock_timestamp()`)
		if b := w.books(); b.Intents[0].Status != "succeeded" || len(b.Captures) != 1 {
			t.Errorf("due: %+v", b)
		}
	})

	t.Run("ten thousand charges are read at once", func(t *testing.T) {
		t.Parallel()
		if testing.Short() {
			t.Skip("not run in short mode: it writes ten thousand charges")
		}
		w := start(t, sandbox.Options{})
		w.exec(`
			insert into payment_intents (id, amount, currency, status, metadata, latest_charge, created_at)
			select 'pi_' || n, 10, 'eur', 'succeeded', jsonb_build_object('charge_id', 'ch_' || n), 'ch_' || n, now()
			from generate_series(1, 10000) n`)
		w.exec(`insert into captures (id, payment_intent, amount, currency) select 'ch_' || n, 'pi_' || n, 10, 'eur' from generate_series(1, 10000) n`)
		w.exec(`insert into shop_effects (webhook_id, reference, type) select 'msg_' || n, 'ch_' || n, 'charge.succeeded' from generate_series(1, 10000) n`)
		w.exec(`insert into shop_deliveries (webhook_id) select 'msg_' || n from generate_series(1, 10000) n, generate_series(1, 3)`)
		w.exec(`insert into requests (id, method, path) select n::text, 'POST', '/' from generate_series(1, 50000) n`)
		b := w.books()
		if len(b.Intents) != 10_000 || len(b.Captures) != 10_000 || len(b.Notifications) != 10_000 ||
			b.Requests != 50_000 || b.Notifications[9_999].Deliveries != 3 {
			t.Errorf("%d intents, %d captures, %d notifications, %d requests",
				len(b.Intents), len(b.Captures), len(b.Notifications), b.Requests)
		}
	})
}

func TestMigrate(t *testing.T) {
	pgtest.Long(t, "it takes a large part of the time")
	t.Parallel()
	database := pgtest.Empty(t)
	const starts = 5
	done := make(chan error)
	for range starts {
		go func() { done <- sandbox.Migrate(t.Context(), database) }()
	}
	for range starts {
		if err := <-done; err != nil {
			t.Errorf("of %d starts at once: %v", starts, err)
		}
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	w := start(t, sandbox.Options{})
	for name, o := range map[string]sandbox.Options{
		"no clock":                 {},
		"no address":               {Now: time.Now, WebhookURL: "localhost", WebhookSecret: "x"},
		"another protocol":         {Now: time.Now, WebhookURL: "ftp://localhost/", WebhookSecret: "x"},
		"no secret for the events": {Now: time.Now, WebhookURL: "http://localhost/"},
		"a secret not in base64":   {Now: time.Now, ShopSecret: "whsec_!"},
	} {
		if _, err := sandbox.New(w.db, o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	w := start(t, sandbox.Options{})
	for _, path := range []string{"/healthz", "/readyz"} {
		if a := w.control(http.MethodGet, path, ""); a.status != http.StatusOK {
			t.Errorf("GET %s: %d", path, a.status)
		}
	}
	w.exec(`alter table payment_intents rename to gone`)
	if a := w.control(http.MethodGet, "/readyz", ""); a.status != http.StatusServiceUnavailable {
		t.Errorf("without its tables it is ready: %d", a.status)
	}
	if a := w.control(http.MethodGet, "/healthz", ""); a.status != http.StatusOK {
		t.Errorf("without its tables it is not alive: %d", a.status)
	}
}
