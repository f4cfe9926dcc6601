package fulfillment_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testdb"
)

// newSandbox is a Stripe-compatible provider with books of its own.
func newSandbox(t *testing.T) http.Handler {
	t.Helper()
	database := testdb.Empty(t)
	if err := sandbox.Migrate(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	sb, err := sandbox.New(pool, sandbox.Options{Now: time.Now, ProcessingTime: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sb.Drain)
	return sb
}

// books are what the provider itself says that it did.
type books struct {
	Intents []struct {
		ID     string `json:"id"`
		Status string `json:"status"`
	} `json:"intents"`
	Captures []moved `json:"captures"`
	Refunds  []moved `json:"refunds"`
}

// moved is money that the provider took or gave back.
type moved struct {
	Reference string `json:"reference"`
	Amount    int64  `json:"amount"`
}

func control(t *testing.T, sb http.Handler, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	answered := httptest.NewRecorder()
	sb.ServeHTTP(answered, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	if answered.Code/100 != 2 {
		t.Fatalf("%s %s: answered %d", method, path, answered.Code)
	}
	return answered
}

func booksOf(t *testing.T, sb http.Handler) books {
	t.Helper()
	var b books
	if err := json.Unmarshal(control(t, sb, http.MethodGet, "/books", "").Body.Bytes(), &b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCharge(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		method   string
		calls    string
		want     sight
		captures int
	}{
		"a good card is charged":                     {"pm_card_visa", "create confirm", succeeded(toStarted), 1},
		"a bad card fails the charge":                {"pm_card_chargeDeclined", "create confirm cancel", failed(toStarted, domain.CardDeclined), 0},
		"a card that wants the customer fails it":    {"pm_card_authenticationRequired", "create confirm cancel", failed(toStarted, domain.AuthenticationRequired), 0},
		"a payment method that nobody has fails it":  {"pm_card_nobody", "create", failed(toReserved, domain.ProviderRefused), 0},
		"a payment that takes its time is waited on": {"pm_card_processing", "create confirm", open(toStarted, "pending"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.provider.behind = newSandbox(t)
			first := order()
			first.PaymentMethod = tc.method
			w.accept("ch_1", first)
			err := w.deliver()
			w.expect(tc.want, tc.calls)
			if tc.method == "pm_card_processing" {
				w.expectKind(err, "waits")
				w.deliverUntilDone()
				w.provider.take()
				w.expect(succeeded(toStarted), "")
			}
			if b := booksOf(t, w.provider.behind); len(b.Captures) != tc.captures {
				t.Errorf("the provider's captures are %+v, want %d", b.Captures, tc.captures)
			}
		})
	}
}

// deliverUntilDone hands the message over for as long as it waits.
func (w *world) deliverUntilDone() {
	w.Helper()
	await.True(w, "the charge has an outcome", func() bool {
		err := w.deliver()
		if err != nil {
			w.expectKind(err, "waits")
		}
		return err == nil
	})
}

func TestCharge_is_taken_once(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]string{
		"when answers are lost":                            `{}`,
		"when answers are lost and all keys are forgotten": `{"forget_keys_after": "0s"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.provider.behind = newSandbox(t)
			control(t, w.provider.behind, http.MethodPut, "/faults", faults)
			w.provider.on("create", w.provider.cutAfter)
			w.provider.on("confirm", w.provider.cutAfter)
			w.accept("ch_1", order())
			for range 2 {
				w.expectKind(w.deliver(), "waits")
			}
			w.expectKind(w.deliver(), "done")
			w.expect(succeeded(toStarted), "create create confirm retrieve")
			if b := booksOf(t, w.provider.behind); len(b.Captures) != 1 || b.Captures[0].Reference != "ch_1" {
				t.Errorf("the provider's captures are %+v, want one of ch_1", b.Captures)
			}
		})
	}

	for name, faults := range map[string]string{
		"when half of the answers are errors of the provider": `{"seed": 7, "error_500": 0.5}`,
		"when half of the requests and answers are lost":      `{"seed": 7, "drop_before": 0.3, "drop_after": 0.3}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.provider.behind = newSandbox(t)
			w.accept("ch_1", order())
			control(t, w.provider.behind, http.MethodPut, "/faults", faults)
			w.deliverUntilDone()
			control(t, w.provider.behind, http.MethodDelete, "/faults", "")
			if got := w.see(); got.Stock != sold || got.Outbox != "charge.succeeded" {
				t.Errorf("the charge left %+v", got)
			}
			if b := booksOf(t, w.provider.behind); len(b.Captures) != 1 {
				t.Errorf("the provider's captures are %+v, want one", b.Captures)
			}
		})
	}
}
