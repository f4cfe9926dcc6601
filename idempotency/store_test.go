package idempotency_test

import (
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

func theKey() idempotency.Key {
	return idempotency.Key{Scope: "acme", Operation: "POST /v1/charges", Value: "k1"}
}

func theAnswer() idempotency.Answer {
	return idempotency.Answer{
		StatusCode: http.StatusAccepted, ContentType: "application/json", Location: "/v1/charges/ch_1",
		Header: http.Header{"Etag": {`"1"`}, "Link": {"</a>", "</b>"}},
		Body:   []byte("{\"id\": \"ch_1\"}\n\x00\xff"),
	}
}

func theRequest() idempotency.Request {
	return idempotency.Request{Fingerprint: []byte("fingerprint"), Canonical: []byte(`{"amount":1}`)}
}

// claim commits a key together with an effect that is not unique.
func claim(t *testing.T, db *postgres.DB, key idempotency.Key, answer idempotency.Answer, expires time.Time) error {
	t.Helper()
	b := &pgx.Batch{}
	idempotency.Claim(b, key, theRequest(), answer, expires)
	b.Queue(`insert into outbox (topic, message_id, payload, metadata) values ('t', 'effect', '', '{}')`)
	return db.Commit(t.Context(), b)
}

func readKey(t *testing.T, q postgres.Querier, key idempotency.Key) (idempotency.Record, bool) {
	t.Helper()
	state, err := idempotency.ReadKey(t.Context(), q, key)
	testdb.Must(t, err)
	if since := time.Since(state.Now).Abs(); since > time.Hour {
		t.Errorf("the database's time is %v away", since)
	}
	return state.Record, state.Found
}

func wantEffects(t *testing.T, db *postgres.DB, want int) {
	t.Helper()
	if got := testdb.One[int](t, db, `select count(*) from outbox`); got != want {
		t.Errorf("%d effects, want %d", got, want)
	}
}

func inAnHour() time.Time { return time.Now().Add(time.Hour).Truncate(time.Second) }

func TestClaim(t *testing.T) {
	t.Parallel()

	t.Run("an answer is kept byte for byte", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		expires := inAnHour()
		testdb.Must(t, claim(t, db, theKey(), theAnswer(), expires))
		record, found := readKey(t, db, theKey())
		want := idempotency.Record{Answer: theAnswer(), Fingerprint: theRequest().Fingerprint, Canonical: theRequest().Canonical, ExpiresAt: expires}
		if diff := cmp.Diff(want, record); diff != "" || !found {
			t.Errorf("found %v (-want +got):\n%s", found, diff)
		}
	})

	t.Run("a key in another scope or operation is another key", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		testdb.Must(t, claim(t, db, theKey(), theAnswer(), inAnHour()))
		scope, operation, value := theKey(), theKey(), theKey()
		scope.Scope, operation.Operation, value.Value = "globex", "POST /v1/charges/{id}/refunds", "K1"
		for _, key := range []idempotency.Key{scope, operation, value} {
			if _, found := readKey(t, db, key); found {
				t.Errorf("%+v is taken", key)
			}
			if err := claim(t, db, key, theAnswer(), inAnHour()); err != nil {
				t.Errorf("%+v: %v", key, err)
			}
		}
		wantEffects(t, db, 4)
	})

	t.Run("a taken key refuses the whole batch", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		for i := range 3 {
			err := claim(t, db, theKey(), theAnswer(), inAnHour())
			if taken := idempotency.IsTaken(err); taken != (i > 0) || (err == nil) == (i > 0) {
				t.Errorf("claim %d: taken %v, %v", i+1, taken, err)
			}
		}
		wantEffects(t, db, 1)
	})
}

// rivalInFlight claims the key in a transaction that stays open.
func rivalInFlight(t *testing.T, db *postgres.DB) pgx.Tx {
	t.Helper()
	tx, b := testdb.Begin(t, db.Pool(), `select 1`), &pgx.Batch{}
	idempotency.Claim(b, theKey(), theRequest(), theAnswer(), inAnHour())
	testdb.Must(t, tx.SendBatch(t.Context(), b).Close())
	return tx
}

func TestWait(t *testing.T) {
	t.Parallel()
	// A pool of one connection, so that what a batch left on it is seen.
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{MaxConns: 1, LockTimeout: 7 * time.Second, StatementTimeout: 8 * time.Second})
	const show = `select current_setting('lock_timeout') || ' ' || current_setting('statement_timeout')`
	testdb.Must(t, claim(t, db, theKey(), theAnswer(), inAnHour()))
	for wait, want := range map[time.Duration]string{
		250 * time.Millisecond: "250ms 10s",
		9 * time.Second:        "9s 11s", // the statement outlasts the wait
		math.MaxInt64:          "10s 12s",
		0:                      "1ms 10s", // no wait is short, not endless
		-time.Second:           "1ms 10s",
		time.Microsecond:       "1ms 10s",
	} {
		for _, refused := range []bool{false, true} {
			var during, after string
			b := &pgx.Batch{}
			idempotency.Wait(b, wait)
			b.Queue(show).QueryRow(func(row pgx.Row) error { return row.Scan(&during) })
			if refused {
				idempotency.Claim(b, theKey(), theRequest(), theAnswer(), inAnHour())
			}
			if err := db.Commit(t.Context(), b); idempotency.IsTaken(err) != refused || !refused && err != nil {
				t.Errorf("a wait of %v: the error is %v", wait, err)
			}
			if err := db.QueryRow(t.Context(), show).Scan(&after); err != nil || during != want || after != "7s 8s" {
				t.Errorf("a wait of %v: the time-outs are %s, want %s, and then %s: %v", wait, during, want, after, err)
			}
		}
	}
}

func TestReadKey_writesNothing(t *testing.T) {
	t.Parallel()
	readKey(t, testdb.Begin(t, testdb.Reused(t).Pool(), `set transaction read only`), theKey())
}

// fromNow is a time by the database's clock.
func fromNow(t *testing.T, q postgres.Querier, d time.Duration) time.Time {
	t.Helper()
	return testdb.One[time.Time](t, q, `select clock_timestamp() + $1::interval`, d)
}

func TestReplay(t *testing.T) {
	t.Parallel()
	kept := idempotency.Answer{StatusCode: http.StatusAccepted, Location: theAnswer().Location}
	for _, test := range []struct {
		name        string
		expired     bool
		fingerprint string
		canonical   string
		answer      idempotency.Answer
		want        error
		pointers    []string
	}{
		{"the same request gets the answer", false, "fingerprint", `{"amount":1}`, theAnswer(), nil, nil},
		{"the fingerprint alone decides that", false, "fingerprint", `{"amount":2}`, theAnswer(), nil, nil},
		{"another request gets the members that differ", false, "another", `{"amount":2,"reason":"r"}`, idempotency.Answer{}, idempotency.ErrReused, []string{"/amount", "/reason"}},
		{"a longer fingerprint is another", false, "fingerprint ", `{"amount":2}`, idempotency.Answer{}, idempotency.ErrReused, []string{"/amount"}},
		{"no fingerprint is another", false, "", `{"amount":2}`, idempotency.Answer{}, idempotency.ErrReused, []string{"/amount"}},
		{"a difference outside the request has no pointer", false, "another path", `{"amount":1}`, idempotency.Answer{}, idempotency.ErrReused, nil},
		{"a request without canonical form is not compared", false, "another", "", idempotency.Answer{}, idempotency.ErrReused, nil},
		{"an expired answer is not replayed", true, "fingerprint", `{"amount":1}`, kept, idempotency.ErrExpired, nil},
		{"another request under an expired key has no pointers", true, "another", `{"amount":2}`, idempotency.Answer{}, idempotency.ErrReused, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			record := idempotency.Record{Answer: theAnswer(), Fingerprint: theRequest().Fingerprint, Canonical: theRequest().Canonical, Expired: test.expired}
			request := idempotency.Request{Fingerprint: []byte(test.fingerprint)}
			if test.canonical != "" {
				request.Canonical = []byte(test.canonical)
			}
			answer, err := record.Replay(request)
			if diff := cmp.Diff(test.answer, answer); diff != "" || !errors.Is(err, test.want) {
				t.Errorf("the error is %v, want %v (-want +got):\n%s", err, test.want, diff)
			}
			if reused, ok := errors.AsType[*idempotency.ReusedError](err); ok && !cmp.Equal(test.pointers, reused.Pointers) {
				t.Errorf("pointers %q, want %q", reused.Pointers, test.pointers)
			}
		})
	}
}

func TestReusedError_holdsNoValueOfARequest(t *testing.T) {
	t.Parallel()
	err := &idempotency.ReusedError{Pointers: []string{"/metadata/4242424242424242"}}
	if !errors.Is(err, idempotency.ErrReused) || strings.Contains(err.Error(), "4242") {
		t.Errorf("it says %q", err)
	}
}
