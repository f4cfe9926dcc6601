package sandbox_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testdb"
)

// replayed reports whether b is a's saved answer.
func replayed(a, b answered) bool {
	return b.status == a.status && b.raw == a.raw && b.header.Get("Idempotent-Replayed") == "true" &&
		b.header.Get("Original-Request") == a.header.Get("Request-Id") &&
		b.header.Get("Request-Id") != a.header.Get("Request-Id")
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	intents := "/v1/payment_intents"

	t.Run("the same key and parameters replay the saved answer, in any order of parameters", func(t *testing.T) {
		t.Parallel()
		first := f.post(intents, "same", "amount", "700", "currency", "eur")
		second := f.post(intents, "same", "currency", "eur", "amount", "700")
		if !replayed(first, second) || second.header.Get("Idempotency-Key") != "same" {
			t.Errorf("answered %v %s\nthen %v %s", first.header, first.raw, second.header, second.raw)
		}
	})

	t.Run("a decline, or a refusal by the intent's state, is replayed, and outlives the state", func(t *testing.T) {
		t.Parallel()
		for method, status := range map[string]int{"pm_card_chargeDeclined": http.StatusPaymentRequired, "": http.StatusBadRequest} {
			confirm := intents + "/" + f.create(method) + "/confirm"
			first := f.post(confirm, "refused "+method)
			f.post(confirm, "", "payment_method", "pm_card_visa").want(t, http.StatusOK, nil)
			if second := f.post(confirm, "refused "+method); first.status != status || !replayed(first, second) {
				t.Errorf("answered %d, then %d %v", first.status, second.status, second.header)
			}
		}
	})

	t.Run("other parameters or another path are refused", func(t *testing.T) {
		t.Parallel()
		f.post(intents, "other", "amount", "700", "currency", "eur").want(t, http.StatusOK, nil)
		want := map[string]any{"error.type": "idempotency_error", "error.code": nil}
		f.post(intents, "other", "amount", "800", "currency", "eur").want(t, http.StatusBadRequest, want)
		f.post(intents, "other").want(t, http.StatusBadRequest, want)
		f.post("/v1/refunds", "other", "amount", "700", "currency", "eur").want(t, http.StatusBadRequest, want)
	})

	t.Run("keys mean nothing on GET", func(t *testing.T) {
		t.Parallel()
		header := http.Header{"Authorization": {"Bearer sk_test_1"}, "Idempotency-Key": {"get"}}
		for _, id := range []string{f.create(""), f.create("")} {
			f.must(f.do(http.MethodGet, intents+"/"+id, "", header)).want(t, http.StatusOK, map[string]any{"id": id})
		}
	})
}

func TestKey_leadsToOneExecutionUnderConcurrency(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	f := start(t, sandbox.Options{})
	id := f.create("pm_card_visa")
	const rivals = 50
	var fresh, replays, refused int
	for _, a := range f.concurrently(rivals, func(int) (answered, error) { return f.tryPost("/v1/payment_intents/"+id+"/confirm", "one") }) {
		switch {
		case a.status == http.StatusConflict && a.text("error.type") == "idempotency_error" && a.text("error.code") == "idempotency_key_in_use":
			refused++
		case a.status == http.StatusOK && a.header.Get("Idempotent-Replayed") == "true":
			replays++
		case a.status == http.StatusOK:
			fresh++
		default:
			t.Errorf("answered %d %s", a.status, a.raw)
		}
	}
	b := f.books()
	if fresh != 1 || replays+refused != rivals-1 || len(b.Captures) != 1 {
		t.Errorf("%d fresh, %d replays, %d refused; %d captures", fresh, replays, refused, len(b.Captures))
	}
	if b.DuplicatesSuppressed != int64(replays) || b.Requests != rivals+1 {
		t.Errorf("%d requests, %d duplicates suppressed; %d were sent and %d replayed",
			b.Requests, b.DuplicatesSuppressed, rivals+1, replays)
	}
}

func TestKey_inFlightIsRefused(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	f := start(t, sandbox.Options{})
	id := f.create("pm_card_visa")
	f.faults(`{"slow":{"p":1,"ms":60000}}`)
	first := f.meanwhile("/v1/payment_intents/"+id+"/confirm", "slow")
	await.True(t, "the first request is seen", func() bool { return f.books().Requests == 2 })
	f.faults(`{}`)
	want := map[string]any{"error.type": "idempotency_error", "error.code": "idempotency_key_in_use"}
	f.post("/v1/payment_intents/"+id+"/confirm", "slow").want(t, http.StatusConflict, want)
	f.post("/v1/payment_intents/"+id+"/cancel", "slow").want(t, http.StatusConflict, want)
	if f.books().Intents[0].Captures != 0 {
		t.Error("captured while delayed")
	}
	f.it.Drain()
	a := <-first
	a.want(t, http.StatusOK, map[string]any{"status": "succeeded"})
	if again := f.post("/v1/payment_intents/"+id+"/confirm", "slow"); !replayed(a, again) {
		t.Errorf("after the flight: %d %v", again.status, again.header)
	}
}

func TestKey_isForgotten(t *testing.T) {
	t.Parallel()

	pairs := []string{"amount", "700", "currency", "eur"}
	t.Run("after 24 hours a key is new", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{})
		first := f.post("/v1/payment_intents", "old", pairs...)
		f.pass(23*time.Hour + 59*time.Minute)
		if second := f.post("/v1/payment_intents", "old", pairs...); !replayed(first, second) {
			t.Errorf("before: %d %s", second.status, second.raw)
		}
		f.pass(2 * time.Minute)
		third := f.post("/v1/payment_intents", "old", "amount", "800", "currency", "eur")
		third.want(t, http.StatusOK, map[string]any{"amount": 800.0})
		if fourth := f.post("/v1/payment_intents", "old", "amount", "800", "currency", "eur"); !replayed(third, fourth) {
			t.Errorf("the key was not used again: %d %s", fourth.status, fourth.raw)
		}
	})

	t.Run("forget_keys_after says after how long", func(t *testing.T) {
		t.Parallel()
		f := start(t, sandbox.Options{})
		first := f.post("/v1/payment_intents", "k", pairs...)
		for _, after := range []string{"1h", "0s"} {
			f.faults(`{"forget_keys_after":"` + after + `"}`)
			if second := f.post("/v1/payment_intents", "k", pairs...); replayed(first, second) != (after == "1h") {
				t.Errorf("forgotten after %s: %d %s", after, second.status, second.raw)
			}
		}
	})
}
