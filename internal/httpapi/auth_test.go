package httpapi_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
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
		"empty":                          {""},
		"a scheme alone":                 {"Bearer"},
		"only spaces after the scheme":   {"Bearer   "},
		"Basic with the API key":         {"Basic " + apiKey},
		"the key without a scheme":       {apiKey},
		"an unknown key":                 {"Bearer " + merchants.NewKey()},
		"a key's prefix":                 {"Bearer " + apiKey[:12]},
		"the prefix and another secret":  {"Bearer " + revoked[:20] + "0123456789012345678901234567890123456789"},
		"a key and more":                 {"Bearer " + apiKey + "x"},
		"a key in other case":            {"Bearer " + strings.ToUpper(apiKey)},
		"two keys":                       {"Bearer " + apiKey + " " + apiKey},
		"not UTF-8":                      {"Bearer \xff\xfe"},
		"a very long key":                {"Bearer " + strings.Repeat("k", 8000)},
		"a wrong key before a right one": {"Bearer nobody", "Bearer " + apiKey},
		"an expired key":                 {"Bearer " + expired},
		"a revoked key":                  {"Bearer " + revoked},
	}
	before := rows(t, w.db)
	for _, c := range []call{post("key-1", body()), post("used", body()), post("", "{"), get("/v1/audit"), get("/v1/nothing")} {
		missing := w.send(t, c.with("Authorization"))
		wantProblem(t, missing, "/problems/unauthorized")
		for name, values := range reasons {
			a := w.send(t, c.with("Authorization", values...))
			for _, header := range []http.Header{missing.header, a.header} {
				header.Del("Date")
				header.Del("X-Request-Id")
			}
			if diff := cmp.Diff([]any{missing.status, missing.header, missing.body}, []any{a.status, a.header, a.body}); diff != "" {
				t.Errorf("%s %s, %s, differs (-missing +this):\n%s", c.method, c.path, name, diff)
			}
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
	held := hold(t, w.db, "key-2")
	under := w.sendAll(t, post("key-2", body()).as(key))
	await.Blocked(t, w.db, 1)
	w.revoke(t, key)
	wantProblem(t, w.send(t, get("/v1/balances").as(key)), "/problems/unauthorized")
	wantProblem(t, w.send(t, post("key-1", body()).as(key)), "/problems/unauthorized") // not even a replay
	testdb.Must(t, held.Rollback(context.WithoutCancel(t.Context())))
	if a := <-under; a.status != http.StatusAccepted {
		t.Errorf("the request in flight: status %d: %s", a.status, a.body)
	}
	wantReplay(t, first, w.send(t, post("key-1", body()).as(other)))
}

// dump is every row of every table as COPY writes it, which is what pg_dump
// does. Bytes are in hexadecimal.
func dump(t *testing.T, db *postgres.DB) string {
	t.Helper()
	conn, err := db.Pool().Acquire(t.Context())
	testdb.Must(t, err)
	defer conn.Release()
	var b bytes.Buffer
	for table := range rows(t, db) {
		if _, err := conn.Conn().PgConn().CopyTo(t.Context(), &b, "copy "+pgx.Identifier{table}.Sanitize()+" to stdout"); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// writings are the forms in which a text may stand somewhere.
func writings(text string) map[string]string {
	return map[string]string{
		"as it is":       text,
		"in hexadecimal": hex.EncodeToString([]byte(text)),
		"in base64":      strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(text)), "="),
		"in JSON's way":  strings.ReplaceAll(text, "-", `\u002d`),
	}
}

// A dump and the logs hold no API key: not whole, nor the part that is secret.
func TestAPIKeys_areInNoDumpOrLog(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := serve(t)
	all, reader, revoked, expired := w.keyFor(t, merchants.Scopes()...), w.keyFor(t, merchants.ChargesRead),
		w.keyFor(t, merchants.Scopes()...), w.keyFor(t, merchants.Scopes()...)
	w.revoke(t, revoked)
	unknown := merchants.NewKey()
	keys := map[string]string{
		"a key given by hand": apiKey, "a key": all, "a key without the scope": reader, "a revoked key": revoked,
		"an expired key": expired, "an unknown key": unknown,
	}
	statuses := map[int]int{}
	ask := func(key string) {
		for _, value := range []string{"Bearer " + key, "bearer  " + key, "Basic " + key, key, "Bearer " + key + " " + key} {
			for _, c := range []call{post("key-1", body()), post("key-2", "{"), get("/v1/audit"), get("/v1/charges/ch_1"), get("/v1/nothing")} {
				statuses[w.send(t, c.with("Authorization", value)).status]++
			}
		}
	}
	for _, key := range []string{apiKey, all, reader, revoked, unknown} {
		ask(key)
	}
	w.expire(t)
	ask(expired)
	for _, status := range []int{
		http.StatusAccepted, http.StatusOK, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
	} {
		if statuses[status] == 0 {
			t.Errorf("no answer had status %d: %v", status, statuses)
		}
	}

	stored := dump(t, w.db)
	for name, key := range keys {
		if strings.Contains(stored, merchants.Prefix(key)) == (key == unknown) {
			t.Errorf("the prefix of %s is stored: %t", name, key != unknown)
		}
	}
	if hash := sha256.Sum256([]byte(all)); !strings.Contains(stored, hex.EncodeToString(hash[:])) {
		t.Error("the hash of a key is not in the dump: does it still hold bytes?")
	}
	w.api.Close()
	ask(all) // what fails is logged with its cause
	for place, text := range map[string]string{"dump": stored, "log": w.log.String()} {
		for name, key := range keys {
			for form, written := range writings(key) {
				if strings.Contains(text, written) {
					t.Errorf("the %s holds %s %s", place, name, form)
				}
			}
			for form, written := range writings(key[len(key)-len(key)/2:]) {
				if strings.Contains(text, written) {
					t.Errorf("the %s holds the secret half of %s %s", place, name, form)
				}
			}
		}
	}
	for name, key := range keys {
		valid := key == apiKey || key == all || key == reader
		if strings.Contains(w.log.String(), merchants.Prefix(key)) != valid {
			t.Errorf("the log holds the prefix of %s: %t", name, !valid)
		}
	}
	t.Logf("looked for %d keys in %d bytes of tables and %d of logs, after answers %v", len(keys), len(stored), len(w.log.String()), statuses)
}
