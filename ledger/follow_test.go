package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// TestFollow_storesEachEventOnce: several follow under one name beside traffic, and some of their work fails.
func TestFollow_storesEachEventOnce(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	exec(t, db, `create table followed (n bigint generated always as identity, stream_id text, version int); insert into followers (name) values ('test')`)
	done, stop := context.WithCancel(t.Context())
	failed := errors.New("the work fails")
	store := func(ctx context.Context, tx pgx.Tx, events []ledger.Followed) error {
		for i, e := range events {
			if _, err := tx.Exec(ctx, `insert into followed (stream_id, version) values ($1, $2)`, e.StreamID, e.Version); err != nil {
				return err
			}
			if e.Position%7 == 0 && i == len(events)-1 && done.Err() == nil {
				return failed
			}
		}
		return nil
	}
	var following, writing errgroup.Group
	for range 3 {
		following.Go(func() error {
			for done.Err() == nil {
				if n, err := ledger.Follow(t.Context(), db, "test", 5, store); err != nil && !errors.Is(err, failed) || n > 5 {
					return fmt.Errorf("%d events: %w", n, err)
				}
			}
			return nil
		})
	}
	for w := range 3 {
		writing.Go(func() error {
			for i := range 20 {
				id := fmt.Sprintf("ch_%d_%d", w, i)
				s := ledger.New(id)
				for _, e := range paid("acme", "pi_"+id) {
					var err error
					if s, err = commit(t.Context(), db, s, cause("a"), e); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	err := writing.Wait()
	stop()
	testdb.Must(t, errors.Join(err, following.Wait()))
	await.Progress(t, "every event is followed", func() (string, bool) {
		_, err := ledger.Follow(t.Context(), db, "test", 100, store)
		testdb.Must(t, err)
		n := testdb.One[int](t, db, `select count(*) from followed`)
		return strconv.Itoa(n), n == 240
	})
	testrun.Same(t, "events twice, or before the one before them", []string{}, testdb.All[string](t, db, `
select stream_id from (select stream_id, version, row_number() over (partition by stream_id order by n) as place from followed) f where version <> place`))
	testrun.Same(t, "the highest position", testdb.One[int64](t, db, `select max(position) from ledger_events`), testdb.One[int64](t, db, `select highest from followers where name = 'test'`))
}
