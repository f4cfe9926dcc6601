package sandbox_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/sandbox"
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
		for method, status := range map[string]int{"pm_card_chargeDeclined": 402, "": 400} {
			confirm := confirmation(f.create(method))
			first := f.post(confirm, "refused "+method)
			f.post(confirm, "", "payment_method", "pm_card_visa").want(t, 200, nil)
			if second := f.post(confirm, "refused "+method); first.status != status || !replayed(first, second) {
				t.Errorf("answered %d, then %d %v", first.status, second.status, second.header)
			}
		}
	})

	t.Run("other parameters or another path are refused", func(t *testing.T) {
		t.Parallel()
		f.post(intents, "other", eur("700")...).want(t, 200, nil)
		want := members{"error.type": "idempotency_error", "error.code": nil}
		f.post(intents, "other", eur("800")...).want(t, 400, want)
		f.post(intents, "other").want(t, 400, want)
		f.post("/v1/refunds", "other", eur("700")...).want(t, 400, want)
	})

	t.Run("keys mean nothing on GET", func(t *testing.T) {
		t.Parallel()
		header := http.Header{"Authorization": {"Bearer sk_test_1"}, "Idempotency-Key": {"get"}}
		for _, id := range []string{f.create(""), f.create("")} {
			f.must(f.do(http.MethodGet, intents+"/"+id, "", header)).want(t, 200, members{"id": id})
		}
	})
}

// Of requests that come at once under one key one is executed; each other is refused, or gets its answer.
func TestIdempotencyKey_inFlight(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	f.faults(`{"slow":{"p":1,"ms":100}}`)
	const rivals = 8
	var answers [rivals]<-chan answered
	for i := range answers {
		answers[i] = f.meanwhile(intents, "once", eur("700", "payment_method", "pm_card_visa", "confirm", "true")...)
	}
	payments := map[string]bool{}
	for _, answer := range answers {
		switch a := <-answer; a.status {
		case http.StatusOK:
			payments[a.text("id")] = true
		default:
			a.want(t, http.StatusConflict, members{"error.type": "idempotency_error", "error.code": "idempotency_key_in_use"})
		}
	}
	if b := f.books(); len(payments) != 1 || len(b.Captures) != 1 || b.Requests != rivals {
		t.Errorf("answered %v; the books have %+v", payments, b)
	}
}

// A key is new after 24 hours, or after forget_keys_after.
func TestKey_isForgotten(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	first := f.post(intents, "old", eur("700")...)
	f.pass(23*time.Hour + 59*time.Minute)
	if second := f.post(intents, "old", eur("700")...); !replayed(first, second) {
		t.Errorf("before: %d %s", second.status, second.raw)
	}
	f.pass(2 * time.Minute)
	f.pass(900 * time.Millisecond) // an age is no number of whole seconds
	made := time.Now()
	third := f.post(intents, "old", eur("800")...)
	third.want(t, 200, members{"amount": 800.0})
	f.pass(200 * time.Millisecond)
	for _, after := range []string{"1s", "24h", "1h", "0s"} {
		f.faults(`{"forget_keys_after":"` + after + `"}`)
		again := f.post(intents, "old", eur("800")...)
		switch {
		case after == "1s" && time.Since(made) > 700*time.Millisecond && !replayed(third, again):
			third = again // a busy machine: the key is as old as that
		case replayed(third, again) != (after != "0s"):
			t.Errorf("forgotten after %s: %d %s", after, again.status, again.raw)
		}
	}
}
