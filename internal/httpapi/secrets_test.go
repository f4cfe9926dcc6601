package httpapi_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// dump is every row of every table as COPY writes it, which is what pg_dump
// does. Bytes are in hexadecimal.
func dump(t *testing.T, db *postgres.DB) string {
	t.Helper()
	found, err := db.Query(t.Context(), selectTables)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	var b bytes.Buffer
	for _, table := range tables {
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

// Whoever has a dump or the logs has no key: not whole, nor the part that is
// secret.
func TestAPIKeysAreInNoDumpAndInNoLog(t *testing.T) {
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
	if strings.Contains(w.log.String(), merchants.Prefix(all)) {
		t.Error("the log holds a prefix")
	}
	t.Logf("looked for %d keys in %d bytes of tables and %d of logs, after answers %v", len(keys), len(stored), len(w.log.String()), statuses)
}
