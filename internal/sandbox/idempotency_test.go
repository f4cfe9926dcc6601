package sandbox_test

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
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

// Rivals under one key, and rivals under their own, capture an intent once.
func TestConfirmations_captureOnceUnderConcurrency(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	for name, keyOf := range map[string]func(int) string{"one": func(int) string { return "one" }, "own": strconv.Itoa} {
		f := start(t, sandbox.Options{})
		confirm := confirmation(f.create("pm_card_visa"))
		const rivals = 50
		var fresh, replays, refused int
		for _, a := range f.concurrently(rivals, func(i int) (answered, error) { return f.tryPost(confirm, keyOf(i)) }) {
			switch {
			case a.text("error.code") == "idempotency_key_in_use" && a.status == 409, a.text("error.code") == "payment_intent_unexpected_state":
				refused++
			case a.status == 200 && a.header.Get("Idempotent-Replayed") == "true":
				replays++
			case a.status == 200:
				fresh++
			default:
				t.Errorf("answered %d %s", a.status, a.raw)
			}
		}
		b := f.books()
		if fresh != 1 || replays+refused != rivals-1 || len(b.Captures) != 1 || b.DuplicatesSuppressed != int64(replays) || b.Requests != rivals+1 {
			t.Errorf("%s: %d fresh, %d replays, %d refused; %+v", name, fresh, replays, refused, b)
		}
	}
}

func TestKey_inFlightIsRefused(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	f := start(t, sandbox.Options{})
	id := f.create("pm_card_visa")
	f.faults(`{"slow":{"p":1,"ms":60000}}`)
	first := f.meanwhile(confirmation(id), "slow")
	testrun.True(t, "the first request is seen", func() bool { return f.books().Requests == 2 })
	f.faults(`{}`)
	want := members{"error.type": "idempotency_error", "error.code": "idempotency_key_in_use"}
	f.post(confirmation(id), "slow").want(t, http.StatusConflict, want)
	f.post(intents+"/"+id+"/cancel", "slow").want(t, http.StatusConflict, want)
	if f.books().Intents[0].Captures != 0 {
		t.Error("captured while delayed")
	}
	f.it.Drain()
	a := <-first
	a.want(t, 200, members{"status": "succeeded"})
	if again := f.post(confirmation(id), "slow"); !replayed(a, again) {
		t.Errorf("after the flight: %d %v", again.status, again.header)
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
	third := f.post(intents, "old", eur("800")...)
	third.want(t, 200, members{"amount": 800.0})
	f.pass(200 * time.Millisecond)
	for _, after := range []string{"24h", "1h", "1s", "0s"} {
		f.faults(`{"forget_keys_after":"` + after + `"}`)
		if again := f.post(intents, "old", eur("800")...); replayed(third, again) != (after != "0s") {
			t.Errorf("forgotten after %s: %d %s", after, again.status, again.raw)
		}
	}
}
