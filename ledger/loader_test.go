package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// counted counts the statements that read.
type counted struct {
	postgres.Querier

	statements *atomic.Int32
}

func (c counted) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	c.statements.Add(1)
	return c.Querier.Query(ctx, sql, args...)
}

func TestLoader(t *testing.T) {
	t.Parallel()

	t.Run("streams that are asked for at once share statements, and each is its own", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		const charges, each = 8, 8
		want := map[string]ledger.Stream{}
		for n := range charges {
			id := fmt.Sprint("ch_", n)
			appended(t, db, ledger.New(id), because("a"), paid("acme", fmt.Sprint("pi_", n))[:1+n%4]...)
			s, err := ledger.Load(t.Context(), db, id)
			if err != nil {
				t.Fatal(err)
			}
			want[id] = s
		}
		var statements atomic.Int32
		loader := ledger.NewLoader(counted{db, &statements}, 0)
		var all sync.WaitGroup
		for n := range charges * each {
			id := fmt.Sprint("ch_", n%charges)
			all.Go(func() {
				got, err := loader.Load(t.Context(), id)
				if diff := cmp.Diff(want[id], got); err != nil || diff != "" {
					t.Errorf("%s: %v (-want +got):\n%s", id, err, diff)
				}
			})
			all.Go(func() {
				if s, err := loader.Load(t.Context(), "ch_none"); !errors.Is(err, ledger.ErrNotFound) {
					t.Errorf("a stream that is not there: %+v, %v", s, err)
				}
			})
		}
		all.Wait()
		if n := statements.Load(); n >= 2*charges*each {
			t.Errorf("%d statements: none was shared", n)
		}
	})

	t.Run("an event that nobody knows is in the way of its own stream alone", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		for _, id := range []string{"ch_1", "ch_2"} {
			appended(t, db, ledger.New(id), because("a"), paid("acme", "pi_"+id)...)
		}
		b := &pgx.Batch{}
		b.Queue(`insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
			values (gen_random_uuid(), 'ch_2', 5, 'charge.moon_landed.v1', 1, 'acme', '{}', '{}', now())`)
		if err := db.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		loader := ledger.NewLoader(db, 0)
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				if _, err := loader.Load(t.Context(), "ch_1"); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				if _, err := loader.Load(t.Context(), "ch_2"); !errors.Is(err, domain.ErrUnknownType) {
					t.Errorf("an unknown event: %v", err)
				}
			})
		}
		all.Wait()
	})
}
