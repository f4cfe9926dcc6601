package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// caughtUp projects until nothing is left, and says how many events there were.
// What other tests have under way on the same server is waited for.
func caughtUp(t *testing.T, db *postgres.DB) (events int) {
	t.Helper()
	await.Progress(t, "the projections have caught up", func() (string, bool) {
		n, err := ledger.Project(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		events += n
		left := collect[int](t, db, `
select count(*)::int
  from ledger_events e
  join projections p
    on (e.txid, e.position) > (p.txid, p.position)
 where p.state = 'live'`)[0]
		return fmt.Sprintf("%d events are folded, %d are left", events, left), left == 0
	})
	return events
}

// list are the ids of a merchant's charges, as the list has them.
func list(t *testing.T, db *postgres.DB, q ledger.ListQuery) (ids []string) {
	t.Helper()
	if q.MerchantID == "" {
		q.MerchantID = "acme"
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	page, err := ledger.ListCharges(t.Context(), db, q)
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range page.Data {
		var view domain.View
		if err := json.Unmarshal(raw, &view); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, view.ID)
	}
	return ids
}

// projected is every row of both projections, and where they stand.
func projected(t *testing.T, db *postgres.DB) []string {
	t.Helper()
	return collect[string](t, db, `
select row(p.txid, p.position, p.highest)::text from projections p where state = 'live'
 union all
(select row(c.charge_id, c.merchant_id, c.order_id, c.status, c.created_at, c.version, c.view::text)::text
   from charge_list c join projections p using (generation) where p.state = 'live' order by c.charge_id)
 union all
(select row(a.merchant_id, a.account, a.debits, a.credits)::text
   from account_balances a join projections p using (generation) where p.state = 'live' order by a.merchant_id, a.account)`)
}

func TestProject(t *testing.T) {
	t.Parallel()

	t.Run("a charge is listed as it is shown", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		events := paid("acme", "pi_1")
		for i := range events {
			s := ledger.New("ch_1")
			if i > 0 {
				s = load(t, db)
			}
			appended(t, db, s, because(strconv.Itoa(i)), events[i])
			if n := caughtUp(t, db); n != 1 {
				t.Errorf("%d events were folded, want 1", n)
			}
			want, err := json.Marshal(load(t, db).View())
			if err != nil {
				t.Fatal(err)
			}
			page, err := ledger.ListCharges(t.Context(), db, ledger.ListQuery{MerchantID: "acme", Limit: 10})
			if err != nil || len(page.Data) != 1 || page.HasMore {
				t.Fatalf("%+v, %v", page, err)
			}
			if diff := cmp.Diff(string(want), string(page.Data[0])); diff != "" {
				t.Errorf("after %d events (-shown +listed):\n%s", i+1, diff)
			}
		}
	})

	t.Run("what a transaction under way may still precede is left out", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		older, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b := &pgx.Batch{}
		if _, err := ledger.Append(b, ledger.New("ch_older"), because("a"), opened("acme", 1000, "EUR")); err != nil {
			t.Fatal(err)
		}
		if err := older.SendBatch(t.Context(), b).Close(); err != nil {
			t.Fatal(err)
		}
		appended(t, db, ledger.New("ch_newer"), because("b"), opened("acme", 1000, "EUR"))
		if n, err := ledger.Project(t.Context(), db); n != 0 || err != nil {
			t.Errorf("%d events were folded before an older transaction had ended: %v", n, err)
		}
		if err := older.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := caughtUp(t, db); n != 2 {
			t.Errorf("%d events were folded, want both", n)
		}
	})

	t.Run("transactions are folded in the order of their numbers, not of their digits", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		s := appended(t, db, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")[:2]...)
		// As if the first ones were of transaction 9, and the last ones of 10.
		exec(t, db, `alter table ledger_events disable trigger ledger_events_append_only; update ledger_events set txid = '9'`)
		appended(t, db, s, because("b"), attempt(500), attempt(502))
		exec(t, db, `update ledger_events set txid = '10' where version > 2`)
		caughtUp(t, db)
		got := collect[string](t, db, `select row(txid, position, version)::text from projections, charge_list where state = 'live'`)
		if diff := cmp.Diff([]string{"(10,4,4)"}, got); diff != "" {
			t.Errorf("checkpoint and version (-want +got):\n%s", diff)
		}
	})

	t.Run("a batch that is refused leaves nothing", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		appended(t, db, ledger.New("ch_1"), because("a"), paid("acme", "pi_1")...)
		want := projected(t, db)
		exec(t, db, `alter table account_balances add constraint refused check (debits <> 1000)`)
		n, err := firstPage(t, db)
		if n != 0 || postgres.Constraint(err) != "refused" {
			t.Errorf("folded %d events: %v", n, err)
		}
		if diff := cmp.Diff(want, projected(t, db)); diff != "" {
			t.Errorf("projections (-before +after):\n%s", diff)
		}
		exec(t, db, `alter table account_balances drop constraint refused`)
		if n := caughtUp(t, db); n != 4 {
			t.Errorf("%d events were folded, want 4", n)
		}
	})

	t.Run("of many who fold the same events one does", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		const charges, rivals = 66, 6 // charges of a writer, and more until two rivals met
		done, stop := context.WithCancel(t.Context())
		var writers, readers errgroup.Group
		var refused, written atomic.Int64
		for w := range 3 {
			writers.Go(func() error {
				for i := 0; i < charges || refused.Load() == 0 && i < 100*charges; i++ {
					id := fmt.Sprintf("ch_%d_%d", w, i)
					b := &pgx.Batch{}
					if _, err := ledger.Append(b, ledger.New(id), because("a"), paid("acme", "pi_"+id)...); err != nil {
						return err
					}
					if err := db.Commit(t.Context(), b); err != nil {
						return err
					}
					written.Add(1)
				}
				return nil
			})
		}
		for range rivals {
			readers.Go(func() error {
				for done.Err() == nil {
					_, err := ledger.Project(t.Context(), db)
					if postgres.Constraint(err) == "projections_folded_once" {
						refused.Add(1)
						continue
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		err := writers.Wait()
		stop()
		if err := errors.Join(err, readers.Wait()); err != nil {
			t.Fatal(err)
		}
		caughtUp(t, db)
		got := collect[string](t, db, `select row(count(*), count(*) filter (where version = 4))::text from charge_list`)
		if diff := cmp.Diff([]string{fmt.Sprintf("(%[1]d,%[1]d)", written.Load())}, got); diff != "" {
			t.Errorf("charges listed, and whole (-want +got):\n%s", diff)
		}
		wantBooks(t, db)
		if refused.Load() == 0 {
			t.Error("nobody was refused: the rivals never met")
		}
	})
}

// wantBooks compares the projected balances with the sums of the postings.
func wantBooks(t *testing.T, db *postgres.DB) {
	t.Helper()
	const sums = `
select row(merchant_id, account, sum(debits), sum(credits))::text
  from (select merchant_id, debit as account, amount as debits, 0 as credits from ledger_postings
         union all
        select merchant_id, credit, 0, amount from ledger_postings) legs
 group by merchant_id, account
 order by merchant_id, account`
	got := collect[string](t, db, `
select row(a.merchant_id, a.account, a.debits, a.credits)::text
  from account_balances a join projections p using (generation)
 where p.state = 'live'
 order by a.merchant_id, a.account`)
	if diff := cmp.Diff(collect[string](t, db, sums), got); diff != "" {
		t.Errorf("balances (-postings +projected):\n%s", diff)
	}
}

// exec runs statements as the owner of the tables.
func exec(t *testing.T, db *postgres.DB, sql string) {
	t.Helper()
	if _, err := db.Pool().Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

// firstPage projects until something is folded or refused: events are left out while
// an older transaction of another test is in flight.
func firstPage(t *testing.T, db *postgres.DB) (events int, err error) {
	t.Helper()
	await.True(t, "a page is folded or refused", func() bool {
		events, err = ledger.Project(t.Context(), db)
		return events > 0 || err != nil
	})
	return events, err
}
