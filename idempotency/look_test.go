package idempotency_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// TestKeyReader: whoever is asked about along with others is shown what is his own.
func TestKeyReader(t *testing.T) {
	t.Parallel()
	const each = 20
	scopes := []string{"acme", "globex", "initech"} // the last one has no key
	db := pgtest.Reused(t)
	for _, scope := range scopes[:2] {
		for n := range each {
			answer := theAnswer()
			answer.Body = []byte(scope + strconv.Itoa(n))
			key := idempotency.Key{Scope: scope, Operation: theKey().Operation, Value: "k" + strconv.Itoa(n)}
			if err := claim(t, db, key, answer, inAnHour()); err != nil {
				t.Fatal(err)
			}
		}
	}
	keys := idempotency.NewKeyReader(pgtest.As(t, db, postgres.RoleAPI), 0)
	held, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := held.Exec(t.Context(), `lock table idempotency_keys in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for _, scope := range scopes {
		for _, operation := range []string{theKey().Operation, "POST /v1/refunds"} {
			for n := range each {
				all.Go(func() {
					key := idempotency.Key{Scope: scope, Operation: operation, Value: "k" + strconv.Itoa(n)}
					state, err := keys.Read(t.Context(), key)
					record, found, now := state.Record, state.Found, state.Now
					taken := scope != "initech" && operation == theKey().Operation
					if found != taken || now.IsZero() || err != nil {
						t.Errorf("%v: found %v at %v, %v", key, found, now, err)
					}
					if !taken {
						return
					}
					alone, err := idempotency.ReadKey(t.Context(), db, key)
					if diff := cmp.Diff(alone.Record, record); diff != "" || err != nil {
						t.Errorf("%v: %v (-alone +together):\n%s", key, err, diff)
					}
					if want := scope + strconv.Itoa(n); string(record.Body) != want {
						t.Errorf("%v: the answer is %s, want %s", key, record.Body, want)
					}
				})
			}
		}
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()

	t.Run("say what they did", func(t *testing.T) {
		t.Parallel()
		closed := pgtest.As(t, db, postgres.RoleAPI)
		closed.Close()
		state, err := idempotency.NewKeyReader(closed, 0).Read(t.Context(), theKey())
		if state.Found || err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", state, err)
		}
	})
}

// TestReceive_readsThroughItsKeyReader: a receiver that has them does as it does without.
func TestReceive_readsThroughItsKeyReader(t *testing.T) {
	t.Parallel()
	db := pgtest.Reused(t)
	r := idempotency.Receiver{DB: db, Keys: idempotency.NewKeyReader(db, 1)}
	for i, replayed := range []bool{false, true} {
		o, err := r.Receive(t.Context(), theKey(), theRequest(), func(context.Context, *pgx.Batch, time.Time) (idempotency.Answer, error) {
			return theAnswer(), nil
		})
		if diff := cmp.Diff(theAnswer(), o.Answer); diff != "" || o.Replayed != replayed || err != nil {
			t.Errorf("request %d: replayed %v, %v (-want +got):\n%s", i, o.Replayed, err, diff)
		}
	}
}

// TestReceive_usesAKnownStateOfItsKeyAlone: what was looked for along with something else is a Receiver's first
// look, of the very key, and no more than that.
func TestReceive_usesAKnownStateOfItsKeyAlone(t *testing.T) {
	t.Parallel()
	looked := func(t *testing.T, db *postgres.DB, key idempotency.Key) idempotency.Request {
		t.Helper()
		request, beside := theRequest(), idempotency.KeyState{Key: idempotency.Key{Operation: "beside", Value: "it"}}
		request.Known.Key = idempotency.Key{Scope: "whatever is said here", Operation: key.Operation, Value: key.Value}
		if err := db.Read(t.Context(), postgres.As(key.Scope), idempotency.ReadKeys([]*idempotency.KeyState{&beside, &request.Known})); err != nil {
			t.Fatal(err)
		}
		if request.Known.Key != key {
			t.Errorf("it is known of %v, want %v", request.Known.Key, key)
		}
		return request
	}
	receive := func(t *testing.T, r idempotency.Receiver, request idempotency.Request, replayed bool) {
		t.Helper()
		o, err := r.Receive(t.Context(), theKey(), request, effect)
		if diff := cmp.Diff(theAnswer(), o.Answer); diff != "" || o.Replayed != replayed || o.ExpiresAt.Before(time.Now()) || err != nil {
			t.Errorf("replayed %v, want %v, until %v, %v (-want +got):\n%s", o.Replayed, replayed, o.ExpiresAt, err, diff)
		}
	}
	mine, made := theKey(), map[idempotency.Commit]int{idempotency.CommitMade: 1}
	for _, test := range []struct {
		name    string
		key     idempotency.Key   // that is looked for, as its merchant
		cache   idempotency.Cache // of the receiver
		before  bool              // the request was done before the look
		between bool              // it is done between look and request
		unread  bool              // the look never came to its end
		looks   int               // of the receiver
		commits map[idempotency.Commit]int
	}{
		{"a free key", mine, nil, false, false, false, 0, made},
		{"a key that is taken", mine, nil, true, false, false, 0, map[idempotency.Commit]int{}},
		{"a key that is taken and was not read", mine, nil, true, false, true, 1, map[idempotency.Commit]int{}},
		{"a key that a rival takes meanwhile", mine, nil, false, true, false, 1, map[idempotency.Commit]int{idempotency.CommitTaken: 1}},
		{"a key that is known is not asked of a cache", mine, &remembers{known: true}, false, false, false, 0, made},
		// Under each of these is another answer to the same request.
		{"another merchant's key", idempotency.Key{Scope: "globex", Operation: mine.Operation, Value: mine.Value}, nil, false, false, false, 1, made},
		{"another operation's key", idempotency.Key{Scope: mine.Scope, Operation: "other", Value: mine.Value}, nil, false, false, false, 1, made},
		{"another key", idempotency.Key{Scope: mine.Scope, Operation: mine.Operation, Value: "other"}, nil, false, false, false, 1, made},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db, told := pgtest.Reused(t), &counts{}
			acting := pgtest.As(t, db, postgres.RoleAPI)
			plain := idempotency.Receiver{DB: acting.Tenant(mine.Scope), Retention: time.Hour}
			if test.before {
				receive(t, plain, theRequest(), false)
			}
			if test.key != mine {
				answer := theAnswer()
				answer.Body = []byte("of another key")
				if err := claim(t, db, test.key, answer, inAnHour()); err != nil {
					t.Fatal(err)
				}
			}
			request := looked(t, acting, test.key)
			if test.unread {
				request.Known = idempotency.KeyState{Key: mine}
			}
			if test.between {
				receive(t, plain, theRequest(), false)
			}
			judged := plain
			judged.Cache, judged.Observer = test.cache, told.observer()
			receive(t, judged, request, test.before || test.between)
			told.want(t, test.looks, test.commits)
		})
	}
}
