package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// history returns a database with 70 charges of two merchants, which are folded.
func history(t *testing.T) *postgres.DB {
	t.Helper()
	db := testdb.Reused(t)
	for i := range 70 {
		merchant := []string{"acme", "globex"}[i%2]
		id := fmt.Sprintf("ch_%02d", i)
		appended(t, db, ledger.New(id), cause("a"), paid(merchant, "pi_"+id)...)
	}
	project(t, db)
	return db
}

const leftovers = `
select (select count(*) from charge_list join projections using (generation) where state <> 'live')
     + (select count(*) from account_balances join projections using (generation) where state <> 'live')`

func TestRebuild(t *testing.T) {
	testdb.Long(t, "it writes thousands of rows")
	t.Parallel()

	t.Run("replaces equal projections byte for byte", func(t *testing.T) {
		t.Parallel()
		db := history(t)
		before := projections(t, db)
		var progress []int64
		got, err := ledger.Rebuild(t.Context(), db, func(events int64) { progress = append(progress, events) })
		testdb.Must(t, err)
		want := ledger.RebuildResult{Events: 280, AsOfPosition: 280, Charges: 70, Balances: 10, Examples: []string{}, Live: true}
		testrun.Same(t, "found", want, got)
		if diff := cmp.Diff(before, projections(t, db)); diff != "" {
			t.Errorf("projections (-before +after):\n%s", diff)
		}
		if n := testdb.One[int](t, db, leftovers); n != 0 {
			t.Errorf("%d rows are left that no reader needs", n)
		}
		if len(progress) == 0 || progress[len(progress)-1] != 280 {
			t.Errorf("the progress is %v", progress)
		}
		if gen := testdb.One[string](t, db, `select string_agg(state, ' ' order by generation) from projections`); gen != "retired live" {
			t.Errorf("generations: %s", gen)
		}
	})

	t.Run("reports and replaces wrong rows", func(t *testing.T) {
		t.Parallel()
		for name, planted := range map[string]struct {
			sql     string
			n       int64
			example string
		}{
			"another byte of what is shown": {
				`update charge_list set view = (view::text || ' ')::json where charge_id = 'ch_07'`, 1,
				"charge ch_07: live says succeeded, 4 events; the ledger says succeeded, 4 events",
			},
			"one missing": {
				`delete from charge_list where charge_id = 'ch_69'`, 1,
				"charge ch_69: not among the live ones; the ledger says succeeded, 4 events",
			},
			"one too many": {
				`insert into charge_list select generation, 'ch_x', merchant_id, order_id, status, created_at, version, view from charge_list where charge_id = 'ch_07'`, 1,
				"charge ch_x: live says succeeded, 4 events; the ledger knows nothing of it",
			},
			"another balance": {
				`update account_balances set debits = debits + 1 where account like 'psp%' and merchant_id = 'acme'`, 1,
				"account psp_receivable:stripe:EUR of acme: live says 35001 − 0; the ledger says 35000 − 0",
			},
			"everything gone": {
				`delete from charge_list; delete from account_balances`, 80,
				"charge ch_00: not among the live ones; the ledger says succeeded, 4 events",
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := history(t)
				right := projections(t, db)
				exec(t, db, planted.sql)
				got, err := ledger.Rebuild(t.Context(), db, nil)
				if err != nil || got.Different != planted.n || !got.Live {
					t.Fatalf("found %+v, %v", got, err)
				}
				if got.Examples[0] != planted.example || len(got.Examples) > 5 {
					t.Errorf("examples: %q", got.Examples)
				}
				if diff := cmp.Diff(right, projections(t, db)); diff != "" {
					t.Errorf("projections (-right +mended):\n%s", diff)
				}
				if again, err := ledger.Rebuild(t.Context(), db, nil); err != nil || again.Different != 0 {
					t.Errorf("and then it found %+v, %v", again, err)
				}
			})
		}
	})

	t.Run("loses nothing of the traffic meanwhile and counts nothing twice", func(t *testing.T) {
		t.Parallel()
		db := history(t)
		done, stop := context.WithCancel(t.Context())
		hasty(t, db)
		hasty(t, db)
		var traffic errgroup.Group
		for w := range 2 {
			traffic.Go(func() error {
				for i := 0; done.Err() == nil; i++ {
					id := fmt.Sprintf("ch_%d_%d", w, i)
					if _, err := commit(t.Context(), db, ledger.New(id), cause("a"), paid("acme", "pi_"+id)...); err != nil {
						return err
					}
				}
				return nil
			})
		}
		traffic.Go(func() error { // a reader must never see the list go back
			most := 0
			for done.Err() == nil {
				var n int
				err := db.QueryRow(t.Context(), `select count(*) from charge_list join projections using (generation) where state = 'live'`).Scan(&n)
				if err != nil {
					return err
				}
				if n < most {
					return fmt.Errorf("%d charges are listed, after %d", n, most)
				}
				most = n
			}
			return nil
		})
		for range 3 {
			got, err := ledger.Rebuild(t.Context(), db, nil)
			if err != nil || got.Different != 0 || !got.Live {
				t.Errorf("found %+v, %v", got, err)
			}
		}
		stop()
		testdb.Must(t, traffic.Wait())
		await.Row(t, db, `select count(*) = (select count(distinct stream_id) from ledger_events) from charge_list join projections using (generation) where state = 'live' and version = 4`)
		checkBalances(t, db)
	})

	t.Run("a rebuild that dies leaves the live ones alone", func(t *testing.T) {
		t.Parallel()
		db := history(t)
		before := projections(t, db)
		ctx, die := context.WithCancel(t.Context())
		got, err := ledger.Rebuild(ctx, db, func(int64) {
			if _, err := ledger.Rebuild(t.Context(), db, nil); ctx.Err() == nil && !errors.Is(err, ledger.ErrRebuilding) {
				t.Errorf("a second rebuild while it works: %v", err)
			}
			die()
		})
		if err == nil || got.Live {
			t.Fatalf("it found %+v", got)
		}
		if n := testdb.One[int](t, db, leftovers); n == 0 {
			t.Error("it died before it had done anything")
		}
		if diff := cmp.Diff(before, projections(t, db)); diff != "" {
			t.Errorf("projections (-before +after):\n%s", diff)
		}
		got, err = ledger.Rebuild(t.Context(), db, nil)
		if err != nil || got.Different != 0 || got.Events != 280 {
			t.Errorf("the next one found %+v, %v", got, err)
		}
		if n := testdb.One[int](t, db, leftovers); n != 0 {
			t.Errorf("%d rows are left that no reader needs", n)
		}
	})

	t.Run("is refused after it has lost its lock to another one", func(t *testing.T) {
		t.Parallel()
		db := history(t)
		cut := false
		_, err := ledger.Rebuild(t.Context(), db, func(int64) {
			if cut {
				return
			}
			cut = true
			exec(t, db, `select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())`)
			await.Progress(t, "the second rebuild gets the lock", func() (string, bool) {
				_, err := ledger.Rebuild(t.Context(), db, nil)
				return fmt.Sprint(err), err == nil
			})
		})
		if err == nil || !strings.Contains(err.Error(), "projections_folded_once") {
			t.Errorf("the first one ended with %v", err)
		}
		checkBalances(t, db)
	})
}
