package httpapi_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// keyFor makes a key of acme that lives for a day.
func (w *world) keyFor(t *testing.T, scopes ...merchants.Scope) string {
	t.Helper()
	key := merchants.NewKey()
	b := &pgx.Batch{}
	merchants.IssueKey(b, key, merchants.Grant{Merchant: "acme", Scopes: scopes, Life: new(24 * time.Hour)})
	testdb.Must(t, w.db.Commit(t.Context(), b))
	return key
}

func (w *world) revoke(t *testing.T, key string) {
	t.Helper()
	exec(t, w.db, `update api_keys set revoked_at = clock_timestamp() where prefix = $1`, merchants.Prefix(key))
}

// expire moves the life of every key that ends into the past, by the database's clock.
func (w *world) expire(t *testing.T) {
	t.Helper()
	exec(t, w.db, `
update api_keys
   set created_at = created_at - interval '25 hours',
       expires_at = expires_at - interval '25 hours'
 where expires_at is not null
   and revoked_at is null`)
}

// as is the call by another key.
func (c call) as(key string) call { return c.with("Authorization", "Bearer "+key) }

// TestUnauthorized_isTheSameForEveryReason: a caller that tries keys does not learn which
// of them were valid once.
func TestUnauthorized_isTheSameForEveryReason(t *testing.T) {
	t.Parallel()
	w := serve(t)
	expired, revoked := w.keyFor(t, merchants.Scopes()...), w.keyFor(t, merchants.Scopes()...)
	w.accepted(t, post("used", body()).as(revoked))
	w.revoke(t, revoked)
	w.expire(t)
	reasons := map[string][]string{
		"a scheme alone":                 {"Bearer"},
		"Basic with the API key":         {"Basic " + apiKey},
		"the key without a scheme":       {apiKey},
		"an unknown key":                 {"Bearer " + merchants.NewKey()},
		"a key's prefix":                 {"Bearer " + apiKey[:12]},
		"the prefix and another secret":  {"Bearer " + revoked[:20] + "0123456789012345678901234567890123456789"},
		"a key in other case":            {"Bearer " + strings.ToUpper(apiKey)},
		"a wrong key before a right one": {"Bearer nobody", "Bearer " + apiKey},
		"an expired key":                 {"Bearer " + expired},
		"a revoked key":                  {"Bearer " + revoked},
	}
	before := rows(t, w.db)
	for _, c := range []call{post("key-1", body()), post("used", body()), post("", "{"), get("/v1/balances"), get("/v1/nothing")} {
		missing := w.send(t, c.with("Authorization"))
		wantProblem(t, missing, "/problems/unauthorized")
		for name, values := range reasons {
			a := w.send(t, c.with("Authorization", values...))
			for _, header := range []http.Header{missing.header, a.header} {
				header.Del("Date")
				header.Del("X-Request-Id")
			}
			testrun.Same(t, c.method+" "+c.path+" with "+name+", beside one without a key", []any{missing.status, missing.header, missing.body}, []any{a.status, a.header, a.body})
		}
	}
	wantRows(t, w.db, before, nil)
	for _, value := range []string{"bearer " + apiKey, "BEARER  " + apiKey + " "} {
		w.read(t, get("/v1/balances").with("Authorization", value))
	}
}

// A request that was authenticated ends as it began; the next one is refused.
func TestRevocation_countsFromTheNextRequest(t *testing.T) {
	t.Parallel()
	w := serve(t)
	key, other := w.keyFor(t, merchants.Scopes()...), w.keyFor(t, merchants.Scopes()...)
	first := w.accepted(t, post("key-1", body()).as(key))
	held := holdAt(t, w.db, "POST /v1/charges", "key-2")
	under := w.sendAll(t, post("key-2", body()).as(key))
	await.Blocked(t, w.db, 1)
	w.revoke(t, key)
	wantProblem(t, w.send(t, get("/v1/balances").as(key)), "/problems/unauthorized")
	wantProblem(t, w.send(t, post("key-1", body()).as(key)), "/problems/unauthorized") // not even a replay
	testdb.Must(t, held.Rollback(context.WithoutCancel(t.Context())))
	wantStatus(t, <-under, http.StatusAccepted) // it was in flight
	wantReplay(t, first, w.send(t, post("key-1", body()).as(other)))
}
