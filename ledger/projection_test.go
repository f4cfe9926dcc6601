package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

func TestProject(t *testing.T) {
	t.Parallel()

	t.Run("writes nothing where nothing is to be folded", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		for range 50 {
			if n, err := ledger.Project(t.Context(), db); n != 0 || err != nil {
				t.Fatal(n, err)
			}
		}
		if got := testdb.One[string](t, db, `select row(batch, txid)::text from projections`); got != "(0,0)" {
			t.Errorf("the checkpoint moved: %v", got)
		}
	})

	t.Run("leaves out what an open transaction may still precede", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		older, err := db.Pool().Begin(t.Context())
		testdb.Must(t, err)
		b := &pgx.Batch{}
		if _, err := ledger.Append(b, ledger.New("ch_older"), cause("a"), requested("acme")); err != nil {
			t.Fatal(err)
		}
		testdb.Must(t, older.SendBatch(t.Context(), b).Close())
		appended(t, db, ledger.New("ch_newer"), cause("b"), requested("acme"))
		if n, err := ledger.Project(t.Context(), db); n != 0 || err != nil {
			t.Errorf("%d events were folded before an older transaction had ended: %v", n, err)
		}
		testdb.Must(t, older.Commit(t.Context()))
		if n := project(t, db); n != 2 {
			t.Errorf("%d events were folded, want both", n)
		}
	})

	// As if the first events were of transaction 9, and the last ones of 10.
	t.Run("orders transactions by their numbers, not by their digits", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		s := appended(t, db, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")[:2]...)
		exec(t, db, `alter table ledger_events disable trigger ledger_events_append_only; update ledger_events set txid = '9'`)
		appended(t, db, s, cause("b"), attempt(500), attempt(502))
		exec(t, db, `update ledger_events set txid = '10' where version > 2`)
		project(t, db)
		got := testdb.One[string](t, db, `select row(txid, position, version)::text from projections, charge_list where state = 'live'`)
		if got != "(10,4,4)" {
			t.Errorf("checkpoint and version are %s, want (10,4,4)", got)
		}
	})

	t.Run("a batch that is refused leaves nothing", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		appended(t, db, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
		want := projections(t, db)
		exec(t, db, `alter table account_balances add constraint refused check (debits <> 1000)`)
		n, err := projectPage(t, db)
		if n != 0 || groupcommit.Constraint(err) != "refused" {
			t.Errorf("folded %d events: %v", n, err)
		}
		if diff := cmp.Diff(want, projections(t, db)); diff != "" {
			t.Errorf("projections (-before +after):\n%s", diff)
		}
		exec(t, db, `alter table account_balances drop constraint refused`)
		if n := project(t, db); n != 4 {
			t.Errorf("%d events were folded, want 4", n)
		}
	})
}

// TestProject_foldsAnEventOnce lets several projectors meet over the same events.
func TestProject_foldsAnEventOnce(t *testing.T) {
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
				if _, err := commit(t.Context(), db, ledger.New(id), cause("a"), paid("acme", "pi_"+id)...); err != nil {
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
				if groupcommit.Constraint(err) == "projections_folded_once" {
					refused.Add(1)
				} else if err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := writers.Wait()
	stop()
	testdb.Must(t, errors.Join(err, readers.Wait()))
	project(t, db)
	got := testdb.One[string](t, db, `select row(count(*), count(*) filter (where version = 4))::text from charge_list`)
	if want := fmt.Sprintf("(%[1]d,%[1]d)", written.Load()); got != want {
		t.Errorf("%s charges are listed, and whole, want %s", got, want)
	}
	checkBalances(t, db)
	if refused.Load() == 0 {
		t.Error("no projector was refused: the rivals never met")
	}
}

// TestProject_boundsTheBytesOfAPage: the list would stand still before a page that takes
// too long, since it would be read again.
func TestProject_boundsTheBytesOfAPage(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it writes 20 MB")
	db := testdb.Reused(t)
	neverAnalyze(t, db)
	const charges = 420
	long := requested("acme")
	long.Metadata = map[string]string{"note": strings.Repeat("0123456789", 4096)}
	appendTo(t, db, newStreams("ch_", charges), long)
	n, err := projectPage(t, db)
	if err != nil || n != 156 { // a quarter of a quarter of a page
		t.Errorf("%d events are folded at once (%v), want 156", n, err)
	}
	if rest := project(t, db); n+rest != charges {
		t.Errorf("%d events are folded in the end", n+rest)
	}
	got, err := ledger.Rebuild(t.Context(), db, nil)
	if err != nil || got.Events != charges || got.Different != 0 || !got.Live {
		t.Errorf("the rebuild found %+v, %v", got, err)
	}
}
