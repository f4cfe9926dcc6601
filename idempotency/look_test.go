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

// TestLooks: whoever is asked about along with others is shown what is his own.
func TestLooks(t *testing.T) {
	t.Parallel()
	const each = 20
	scopes := []string{"acme", "globex", "initech"} // the last one has no key
	db := pgtest.Open(t)
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
	looks := idempotency.NewLooks(pgtest.As(t, db, postgres.RoleAPI), 0)
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
					record, found, now, err := looks.Look(t.Context(), key)
					taken := scope != "initech" && operation == theKey().Operation
					if found != taken || now.IsZero() || err != nil {
						t.Errorf("%v: found %v at %v, %v", key, found, now, err)
					}
					if !taken {
						return
					}
					alone, _, _, err := idempotency.Look(t.Context(), db, key)
					if diff := cmp.Diff(alone, record); diff != "" || err != nil {
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
		_, found, _, err := idempotency.NewLooks(closed, 0).Look(t.Context(), theKey())
		if found || err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("found %v, %v", found, err)
		}
	})
}

// TestLooksOfAReceiver: a receiver that has them does as it does without.
func TestLooksOfAReceiver(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	r := idempotency.Receiver{DB: db, Looks: idempotency.NewLooks(db, 1)}
	for i, replayed := range []bool{false, true} {
		o, err := r.Receive(t.Context(), theKey(), theRequest(), func(context.Context, *pgx.Batch, time.Time) (idempotency.Answer, error) {
			return theAnswer(), nil
		})
		if diff := cmp.Diff(theAnswer(), o.Answer); diff != "" || o.Replayed != replayed || err != nil {
			t.Errorf("request %d: replayed %v, %v (-want +got):\n%s", i, o.Replayed, err, diff)
		}
	}
}
