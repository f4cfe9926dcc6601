package sandbox_test

import (
	"net/http"
	"testing"

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
	w := start(t, sandbox.Options{})
	intents := "/v1/payment_intents"

	t.Run("the same key and parameters replay the saved answer, in any order of parameters", func(t *testing.T) {
		t.Parallel()
		first := w.post(intents, "same", "amount", "7", "currency", "eur")
		second := w.post(intents, "same", "currency", "eur", "amount", "7")
		if !replayed(first, second) || second.header.Get("Idempotency-Key") != "same" {
			t.Errorf("answered %v %s\nthen %v %s", first.header, first.raw, second.header, second.raw)
		}
	})

	t.Run("a decline, or a refusal by the intent's state, is replayed, and outlives the state", func(t *testing.T) {
		t.Parallel()
		for method, status := range map[string]int{"pm_card_chargeDeclined": http.StatusPaymentRequired, "": http.StatusBadRequest} {
			confirm := intents + "/" + w.create(method) + "/confirm"
			first := w.post(confirm, "refused "+method)
			w.post(confirm, "", "payment_method", "pm_card_visa").want(t, http.StatusOK, nil)
			if second := w.post(confirm, "refused "+method); first.status != status || !replayed(first, second) {
				t.Errorf("answered %d, then %d %v", first.status, second.status, second.header)
			}
		}
	})

	t.Run("other parameters or another path are refused", func(t *testing.T) {
		t.Parallel()
		w.post(intents, "other", "amount", "7", "currency", "eur").want(t, http.StatusOK, nil)
		want := map[string]any{"error.type": "idempotency_error", "error.code": nil}
		w.post(intents, "other", "amount", "8", "currency", "eur").want(t, http.StatusBadRequest, want)
		w.post(intents, "other").want(t, http.StatusBadRequest, want)
		w.post("/v1/refunds", "other", "amount", "7", "currency", "eur").want(t, http.StatusBadRequest, want)
	})

	t.Run("keys mean nothing on GET", func(t *testing.T) {
		t.Parallel()
		header := http.Header{"Authorization": {"Bearer sk_test_1"}, "Idempotency-Key": {"get"}}
		for _, id := range []string{w.create(""), w.create("")} {
			w.must(w.do(http.MethodGet, intents+"/"+id, "", header)).want(t, http.StatusOK, map[string]any{"id": id})
		}
	})
}

func TestKey_leadsToOneExecutionUnderConcurrency(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := start(t, sandbox.Options{})
	id := w.create("pm_card_visa")
	const rivals = 50
	var fresh, replays, refused int
	for _, a := range w.concurrently(rivals, func(int) (answered, error) { return w.tryPost("/v1/payment_intents/"+id+"/confirm", "one") }) {
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
	b := w.books()
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
	w := start(t, sandbox.Options{})
	id := w.create("pm_card_visa")
	w.faults(`{"slow":{"p":1,"ms":60000}}`)
	first := make(chan answered)
	go func() {
		a, err := w.tryPost("/v1/payment_intents/"+id+"/confirm", "slow")
		if err != nil {
			t.Error(err)
		}
		first <- a
	}()
	await.True(t, "the first request is seen", func() bool { return w.books().Requests == 2 })
	w.faults(`{}`)
	want := map[string]any{"error.type": "idempotency_error", "error.code": "idempotency_key_in_use"}
	w.post("/v1/payment_intents/"+id+"/confirm", "slow").want(t, http.StatusConflict, want)
	w.post("/v1/payment_intents/"+id+"/cancel", "slow").want(t, http.StatusConflict, want)
	if w.books().Intents[0].Captures != 0 {
		t.Error("captured while delayed")
	}
	w.it.Drain()
	a := <-first
	a.want(t, http.StatusOK, map[string]any{"status": "succeeded"})
	if again := w.post("/v1/payment_intents/"+id+"/confirm", "slow"); !replayed(a, again) {
		t.Errorf("after the flight: %d %v", again.status, again.header)
	}
}

func TestKey_isForgotten(t *testing.T) {
	t.Parallel()

	pairs := []string{"amount", "7", "currency", "eur"}
	t.Run("after 24 hours of the database's clock a key is new", func(t *testing.T) {
		t.Parallel()
		w := start(t, sandbox.Options{})
		first := w.post("/v1/payment_intents", "old", pairs...)
		w.exec(`update idempotency_keys set created_at = created_at - interval '23 hours 59 minutes'`)
		if second := w.post("/v1/payment_intents", "old", pairs...); !replayed(first, second) {
			t.Errorf("before: %d %s", second.status, second.raw)
		}
		w.exec(`update idempotency_keys set created_at = created_at - interval '2 minutes'`)
		third := w.post("/v1/payment_intents", "old", "amount", "8", "currency", "eur")
		third.want(t, http.StatusOK, map[string]any{"amount": 8.0})
		if fourth := w.post("/v1/payment_intents", "old", "amount", "8", "currency", "eur"); !replayed(third, fourth) {
			t.Errorf("the key was not used again: %d %s", fourth.status, fourth.raw)
		}
	})

	t.Run("forget_keys_after says after how long", func(t *testing.T) {
		t.Parallel()
		w := start(t, sandbox.Options{})
		first := w.post("/v1/payment_intents", "k", pairs...)
		for _, after := range []string{"1h", "0s"} {
			w.faults(`{"forget_keys_after":"` + after + `"}`)
			if second := w.post("/v1/payment_intents", "k", pairs...); replayed(first, second) != (after == "1h") {
				t.Errorf("forgotten after %s: %d %s", after, second.status, second.raw)
			}
		}
	})
}

// An effect, its events and its saved answer are one commit: if any of the writes is
// refused, none of the others remains.
func TestWrite_isOneCommit(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"idempotency_keys", "events", "captures", "payment_intents"} {
		t.Run("when "+table+" refuses, nothing happened", func(t *testing.T) {
			t.Parallel()
			w := start(t, sandbox.Options{})
			id := w.create("pm_card_visa")
			w.exec(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$`)
			w.exec(`create constraint trigger refuse after insert or update on ` + table +
				` deferrable initially deferred for each row execute function refuse()`)
			w.post("/v1/payment_intents/"+id+"/confirm", "key").want(t, http.StatusServiceUnavailable, map[string]any{"error.type": "api_error"})
			if rows := w.count(`
				select (select count(*) from idempotency_keys) + (select count(*) from captures)
				     + (select count(*) from events where type <> 'payment_intent.created')
				     + (select count(*) from payment_intents where status <> 'requires_confirmation')`); rows != 0 {
				t.Fatalf("%d rows of a refused commit remain", rows)
			}
			w.exec(`drop trigger refuse on ` + table)
			a := w.post("/v1/payment_intents/"+id+"/confirm", "key")
			a.want(t, http.StatusOK, map[string]any{"status": "succeeded"})
			if b := w.books(); a.header.Get("Idempotent-Replayed") != "" || len(b.Captures) != 1 {
				t.Errorf("%d captures, headers %v", len(b.Captures), a.header)
			}
		})
	}
}

// If another process holds the key, the unique constraint refuses the loser, which
// rolls back and replays.
func TestWrite_replaysWhatARivalProcessSaved(t *testing.T) {
	t.Parallel()
	w := start(t, sandbox.Options{})
	first := w.post("/v1/payment_intents", "k", "amount", "7", "currency", "eur")
	tx, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	_, err = tx.Exec(t.Context(), `
		insert into idempotency_keys (key, fingerprint, request_id, status, body)
		select 'rival', fingerprint, request_id, status, body
		from idempotency_keys`)
	if err != nil {
		t.Fatal(err)
	}
	loser := make(chan answered)
	go func() {
		a, err := w.tryPost("/v1/payment_intents", "rival", "amount", "7", "currency", "eur")
		if err != nil {
			t.Error(err)
		}
		loser <- a
	}()
	await.True(t, "the loser waits for the winner's commit", func() bool {
		return w.count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) > 0
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if second := <-loser; !replayed(first, second) || len(w.books().Intents) != 1 {
		t.Errorf("answered %d %s; %d intents", second.status, second.raw, len(w.books().Intents))
	}
}

func TestConfirm_answers429WhileTheIntentIsLocked(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := start(t, sandbox.Options{})
	id := w.create("pm_card_visa")
	tx, err := w.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `select id from payment_intents for update`); err != nil {
		t.Fatal(err)
	}
	w.exec(`do $$ begin execute format('alter database %I set lock_timeout = ''100ms''', current_database()); end $$`)
	w.db.Reset() // new connections have the new setting
	w.post("/v1/payment_intents/"+id+"/confirm", "held").
		want(t, http.StatusTooManyRequests, map[string]any{"error.code": "lock_timeout"})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.post("/v1/payment_intents/"+id+"/confirm", "held").want(t, http.StatusOK, map[string]any{"status": "succeeded"})
}
