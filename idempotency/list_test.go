package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func list(t *testing.T, q postgres.Querier, scope, key string) []idempotency.Entry {
	t.Helper()
	entries, err := idempotency.List(t.Context(), q, scope, key)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestList(t *testing.T) {
	t.Parallel()

	t.Run("a key that nobody used led to nothing", func(t *testing.T) {
		t.Parallel()
		if got := list(t, pgtest.Reused(t), "acme", "k1"); len(got) > 0 {
			t.Errorf("it led to %v", got)
		}
	})

	t.Run("each use is listed, the first one first", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		expires := inAnHour()
		refund := idempotency.Key{Scope: "acme", Operation: "POST /v1/charges/{id}/refunds", Value: "k1"}
		cancel := idempotency.Key{Scope: "acme", Operation: "POST /v1/charges/{id}/cancel", Value: "k1"}
		before := fromNow(t, db, 0)
		for _, key := range []idempotency.Key{refund, theKey(), cancel} {
			if err := claim(t, db, key, theAnswer(), expires); err != nil {
				t.Fatal(err)
			}
		}
		after := fromNow(t, db, 0)
		got := list(t, db, "acme", "k1")
		for i := range got {
			if seen := got[i].FirstSeen; seen.Before(before) || seen.After(after) {
				t.Errorf("first seen at %v, not between %v and %v", seen, before, after)
			}
			got[i].FirstSeen = time.Time{}
		}
		var want []idempotency.Entry
		for _, key := range []idempotency.Key{refund, theKey(), cancel} {
			want = append(want, idempotency.Entry{Operation: key.Operation, StatusCode: http.StatusAccepted, Location: theAnswer().Location, ExpiresAt: expires})
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("entries (-want +got):\n%s", diff)
		}
	})

	t.Run("nobody sees what is not his", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		if err := claim(t, db, theKey(), theAnswer(), inAnHour()); err != nil {
			t.Fatal(err)
		}
		for _, place := range [][2]string{{"globex", "k1"}, {"acme", "K1"}, {"acme", "k"}, {"", "k1"}} {
			if got := list(t, db, place[0], place[1]); len(got) > 0 {
				t.Errorf("%q of %s led to %v", place[1], place[0], got)
			}
		}
	})

	t.Run("what has expired is still told, swept or not", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		claimExpired(t, db, 1)
		before := list(t, db, "acme", "old0")
		wantSwept(t, db, 1, 1)
		after := list(t, db, "acme", "old0")
		if diff := cmp.Diff(before, after); diff != "" || len(after) != 1 || after[0].Location != theAnswer().Location {
			t.Errorf("%v (-before +after):\n%s", after, diff)
		}
	})

	t.Run("it reads no more as the scope's keys grow", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		tombstones(t, db, 20000)
		if err := claim(t, db, theKey(), theAnswer(), inAnHour()); err != nil {
			t.Fatal(err)
		}
		tx, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		if got := list(t, tx, "acme", "k1"); len(got) != 1 {
			t.Errorf("it led to %v", got)
		}
		wantRead(t, tx, 10)
	})

	t.Run("it says what it did", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := idempotency.List(ctx, pgtest.Reused(t), "acme", "k1")
		if !errors.Is(err, context.Canceled) || err.Error() != "list the uses of an idempotency key: context canceled" {
			t.Errorf("the error is %v", err)
		}
	})
}
