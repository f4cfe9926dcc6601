package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestReceive_ofWorkThatClaimsKeys(t *testing.T) {
	t.Parallel()

	t.Run("a taken key that the work itself claims is a refusal", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		testdb.Must(t, claim(t, db, keyOf("foreign"), theAnswer(), inAnHour()))
		calls := 0
		_, err := idempotency.Receiver{DB: db}.Receive(t.Context(), theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
			calls++
			idempotency.Claim(b, keyOf("foreign"), theRequest(), theAnswer(), now.Add(time.Hour))
			return effect(ctx, b, now)
		})
		if !idempotency.IsTaken(err) || errors.Is(err, idempotency.ErrUnknown) || calls != 1 {
			t.Errorf("%d calls, %v", calls, err)
		}
		wantEffects(t, db, 1)
		if _, found := readKey(t, db, theKey()); found {
			t.Error("the key is taken")
		}
	})
}

// counts are what the hooks of a Receiver receive of one request.
type counts struct {
	reading, read int
	commits       map[idempotency.CommitResult]int
}

func (c *counts) observe(r *idempotency.Receiver) {
	c.commits = map[idempotency.CommitResult]int{}
	r.Reading = func() func() { c.reading++; return func() { c.read++ } }
	r.OnCommit = func(kind idempotency.CommitResult) { c.commits[kind]++ }
}

func (c *counts) want(t *testing.T, reads int, commits map[idempotency.CommitResult]int) {
	t.Helper()
	if c.reading != reads || c.read != reads {
		t.Errorf("%d reads of which %d ended, want %d", c.reading, c.read, reads)
	}
	testrun.Same(t, "commits", commits, c.commits)
}

func TestReceiver_reportsReadsAndCommits(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		rival   bool // another request under the key is in flight
		lost    bool // the refusal is a lost race
		want    string
		reads   int
		commits map[idempotency.CommitResult]int
	}{
		{"a write that the database refuses", false, false, "null value", 1, map[idempotency.CommitResult]int{idempotency.CommitFailed: 1}},
		{"a race that the work lost", false, true, "", 2, map[idempotency.CommitResult]int{idempotency.CommitLost: 1, idempotency.CommitMade: 1}},
		{"a rival in flight", true, false, idempotency.ErrInFlight.Error(), 1, map[idempotency.CommitResult]int{idempotency.CommitInFlight: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db, counted, calls := testdb.OpenAt(t, testdb.URL(t), postgres.Options{LockTimeout: 20 * time.Millisecond}), &counts{}, 0
			if test.rival {
				rivalInFlight(t, db)
			}
			r := idempotency.Receiver{DB: db, IsConflict: func(error) bool { return test.lost }}
			counted.observe(&r)
			_, err := r.Receive(t.Context(), theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
				if calls++; calls == 1 {
					b.Queue(`insert into outbox (topic, message_id, payload, metadata) values (null, 'effect', '', '{}')`)
				}
				return effect(ctx, b, now)
			})
			if got := fmt.Sprint(err); (err == nil) != (test.want == "") || !strings.Contains(got, test.want) || errors.Is(err, idempotency.ErrUnknown) {
				t.Errorf("the error is %s", got)
			}
			counted.want(t, test.reads, test.commits)
		})
	}
}
