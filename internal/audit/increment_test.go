package audit_test

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// keepUp audits, as a worker, all that is new. It waits for other transactions of the server.
func (f *fixture) keepUp(worker *postgres.DB) (violated []audit.Check) {
	f.t.Helper()
	testrun.Progress(f.t, "the audit has caught up", func() (string, bool) {
		more, _, err := audit.Continue(f.t.Context(), worker)
		testdb.Must(f.t, err)
		violated = append(violated, more...)
		left := number(f, `select count(*) from ledger_events e, followers p where p.name = 'audit' and (e.txid, e.position) > (p.txid, p.position)`)
		return fmt.Sprintf("%d events are left", left), left == 0
	})
	return violated
}

// progress is what the workers have found, and how much of it no audit of the tables has covered.
func (f *fixture) progress() (found, left int) {
	f.t.Helper()
	found, left, err := audit.Found(f.t.Context(), f.db)
	testdb.Must(f.t, err)
	return found, left
}

func TestContinue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.addUp()
	f.run("breakable")
	worker := testdb.As(t, f.db, postgres.RoleWorker)
	got := f.keepUp(worker)
	if found, _ := f.progress(); len(got) > 0 || found > 0 || number(f, `select checked from audit_progress`) == 0 {
		t.Errorf("of a legal history: %d, %+v", found, got)
	}

	f.exec(`delete from ledger_postings where stream_id = '{sold}'`)
	if got := f.keepUp(worker); len(got) > 0 {
		t.Errorf("a charge without new events was audited: %+v", got)
	}
	f.accept("acme", "later", true)
	f.exec(`select append_event('{sold}', 'charge.praised.v1', '{}')`)
	names := violated(f.keepUp(worker))
	if want := sorted([]string{"streams are legal", "postings are what the events cause"}); fmt.Sprint(names) != fmt.Sprint(want) {
		t.Errorf("violated: %v, want %v", names, want)
	}
	found, left := f.progress()
	if found == 0 || left != found {
		t.Errorf("%d are stored, and %d of them are left", found, left)
	}

	// A clean increment and time take nothing back, an audit of the tables what was found before.
	f.accept("acme", "last", true)
	got = f.keepUp(worker)
	if _, left := f.progress(); len(got) > 0 || left != found {
		t.Errorf("after a clean increment %d are left, %+v", left, got)
	}
	f.exec(`select append_event('{sold}', 'charge.praised.v1', '{}')`)
	f.keepUp(worker)
	for range 2 { // a second audit, which began as early
		b := &pgx.Batch{}
		audit.Supersede(b, found)
		testdb.Must(t, f.db.Commit(t.Context(), b))
		if now, left := f.progress(); left != now-found || left == 0 {
			t.Errorf("of %d violations %d are superseded, and %d left", now, found, left)
		}
	}
}

// TestContinue_readsTheNewChargesAlone: an increment of a hundred charges reads as many rows and entries of
// indexes among 5,000 charges as among none, also with plans that were made when the tables were empty.
func TestContinue_readsTheNewChargesAlone(t *testing.T) {
	testdb.Long(t, "it writes thousands of charges")
	t.Parallel()
	db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{MaxConns: 1, StatementTimeout: 5 * time.Minute})
	f := fixtureIn(t, db)
	for _, table := range []string{"ledger_events", "ledger_postings", "held_orders", "reservations", "outbox", "inbox"} {
		f.exec(`alter table ` + table + ` set (autovacuum_enabled = off)`)
	}
	f.pay("sold")
	f.notify("sold")
	f.run("breakable")
	f.exec(`update ledger_events set txid = '2'`)
	f.keepUp(db)
	fill := func(first, last int) {
		f.run("copies", "$first", strconv.Itoa(first), "$last", strconv.Itoa(last))
	}
	const read = `
select (select sum(seq_tup_read) from pg_stat_user_tables where relname not in ('audit_progress', 'followers'))
     + (select sum(idx_tup_read) from pg_stat_user_indexes where relname <> 'followers') + 0 * length(pg_stat_force_next_flush()::text)`
	cost := func(first int) int64 {
		f.exec(`update followers set (txid, position) = (select txid, position from ledger_events order by txid desc, position desc limit 1); update audit_progress set checked = 0`)
		fill(first, first+99)
		number(f, read)
		before := number(f, read)
		if got := f.keepUp(db); len(got) > 0 {
			t.Fatalf("violated: %+v", got)
		}
		number(f, read)
		return number(f, read) - before
	}
	few, checked := cost(1), number(f, `select checked from audit_progress`)

	fill(101, 5_000)
	many := cost(5_001)
	if again := number(f, `select checked from audit_progress`); many > few+100 || few > 100*70 || again != checked {
		t.Errorf("an increment reads %d rows and entries of indexes for %d cases, among 5,000 charges %d for %d", few, checked, many, again)
	}
}

// hidden are planted in rows to which no event of a charge leads: the audit of the tables alone finds them.
var hidden = []string{"a_message_about_nothing", "a_reservation_without_a_charge", "an_order_held_without_need"}

// agrees makes an increment of all charges, which finds what the report has of its checks.
func agrees(t *testing.T, db audit.Database, report audit.Report) {
	t.Helper()
	all := testdb.All[string](t, db, `select distinct stream_id from ledger_events`)
	if len(all) == 0 {
		return
	}
	checks, err := audit.CheckCharges(t.Context(), db, all)
	testdb.Must(t, err)
	missed := 0
	for _, c := range checks {
		if all := named(t, report, c.Name); all.Checked != c.Checked || all.Violated != c.Violated {
			missed++
			if !slices.Contains(hidden, path.Base(t.Name())) {
				t.Errorf("the audit: %+v\nan increment: %+v", all, c)
			}
		}
	}
	if missed == 0 && slices.Contains(hidden, path.Base(t.Name())) {
		t.Error("an increment finds it too")
	}
}
