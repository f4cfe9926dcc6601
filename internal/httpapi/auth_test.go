package httpapi_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// keyFor makes a key of acme that lives for a day.
func (w *world) keyFor(t *testing.T, scopes ...merchants.Scope) string {
	t.Helper()
	key := merchants.NewKey()
	b := &pgx.Batch{}
	merchants.IssueKey(b, "acme", key, scopes, 24*time.Hour)
	if err := w.db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return key
}

func (w *world) revoke(t *testing.T, key string) {
	t.Helper()
	found, err := merchants.FindKeys(t.Context(), w.db, "acme", key)
	if err != nil || len(found) != 1 {
		t.Fatalf("%d keys: %v", len(found), err)
	}
	b := &pgx.Batch{}
	merchants.RevokeKey(b, found[0])
	if err := w.db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// expire moves the life of every key that ends into the past, by the database's
// clock. Ours is not asked.
func (w *world) expire(t *testing.T) {
	t.Helper()
	b := &pgx.Batch{}
	b.Queue(`
update api_keys
   set created_at = created_at - interval '25 hours',
       expires_at = expires_at - interval '25 hours'
 where expires_at is not null
   and revoked_at is null`)
	if err := w.db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// as is the call by another key.
func (c call) as(key string) call { return c.with("Authorization", "Bearer "+key) }

// Whoever tries keys does not learn which of them were once good.
func TestEveryReasonHasTheSameAnswer(t *testing.T) {
	pgtest.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := serve(t)
	expired, revoked, both := w.keyFor(t, merchants.Scopes()...), w.keyFor(t, merchants.Scopes()...), w.keyFor(t, merchants.Scopes()...)
	for _, key := range []string{expired, revoked, both} {
		w.accepted(t, post("key-of-"+key[:16], body()).as(key))
	}
	w.revoke(t, revoked)
	w.expire(t)
	w.revoke(t, both)
	before := rows(t, w.db)
	for _, c := range []call{
		post("key-1", body()), post("", "{"), post("key-of-"+revoked[:16], body()),
		get("/v1/balances"), get("/v1/audit"), get("/v1/charges/ch_1"), get("/v1/nothing"),
	} {
		missing := w.send(t, c.with("Authorization"))
		wantProblem(t, missing, "/problems/unauthorized")
		for name, value := range map[string]string{
			"malformed":                         "Basic " + revoked,
			"unknown":                           "Bearer " + merchants.NewKey(),
			"unknown, with the prefix of a key": "Bearer " + revoked[:20] + "0123456789012345678901234567890123456789",
			"expired":                           "Bearer " + expired,
			"revoked":                           "Bearer " + revoked,
			"expired and revoked":               "Bearer " + both,
		} {
			a := w.send(t, c.with("Authorization", value))
			if diff := cmp.Diff(missing.body, a.body); a.status != missing.status || diff != "" {
				t.Errorf("%s %s, %s: status %d, told apart (-missing +this):\n%s", c.method, c.path, name, a.status, diff)
			}
			if diff := cmp.Diff(constant(missing.header), constant(a.header)); diff != "" {
				t.Errorf("%s %s, %s: told apart (-missing +this):\n%s", c.method, c.path, name, diff)
			}
		}
	}
	wantRows(t, w.db, before, nil)
}

// constant are the headers that are not of the moment.
func constant(h http.Header) http.Header {
	h = h.Clone()
	h.Del("Date")
	h.Del("X-Request-Id")
	return h
}

// A request that was let in ends as it began; the next one is refused.
func TestRevocationCountsFromTheNextRequestOn(t *testing.T) {
	t.Parallel()
	w := serve(t)
	key, other := w.keyFor(t, merchants.Scopes()...), w.keyFor(t, merchants.Scopes()...)
	first := w.accepted(t, post("key-1", body()).as(key))
	held := hold(t, w.db, "key-2")
	under := make(chan answer, 1)
	go func() {
		a, err := w.try(t, post("key-2", body()).as(key))
		if err != nil {
			t.Error(err)
		}
		under <- a
	}()
	waiting(t, w.db, 1)
	w.revoke(t, key)
	wantProblem(t, w.send(t, get("/v1/balances").as(key)), "/problems/unauthorized")
	wantProblem(t, w.send(t, post("key-1", body()).as(key)), "/problems/unauthorized") // not even a replay
	if err := held.Rollback(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	if a := <-under; a.status != http.StatusAccepted {
		t.Errorf("the request under way: status %d: %s", a.status, a.body)
	}
	wantReplay(t, first, w.send(t, post("key-1", body()).as(other)))
}

// Two keys of a merchant are one client: what was asked for by the old one is
// replayed to the new one.
func TestRotation(t *testing.T) {
	t.Parallel()
	w := serve(t)
	before := w.keyFor(t, merchants.Scopes()...)
	first := w.accepted(t, post("key-1", body()).as(before))
	after := w.keyFor(t, merchants.Scopes()...)
	for _, key := range []string{before, after} {
		wantReplay(t, first, w.send(t, post("key-1", body()).as(key)))
	}
	w.revoke(t, before)
	wantProblem(t, w.send(t, post("key-1", body()).as(before)), "/problems/unauthorized")
	wantReplay(t, first, w.send(t, post("key-1", body()).as(after)))
}
