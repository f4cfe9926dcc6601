package audit_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// lists are the provider's lists by their names, and of each the objects by their ids.
type lists map[string]map[string]audit.Listed

// edit changes the lists as a section of testdata/listed.txt says, and returns the checks that this violates, and
// the charges of which it misses events.
func (f *fixture) edit(l lists, section txtar.File) (want, missed []string) {
	f.t.Helper()
	for line := range strings.Lines(f.named(string(section.Data))) {
		words := append(strings.Fields(strings.ReplaceAll(line, " - ", "  \x00 ")), "", "")
		for i := range words {
			words[i] = strings.Trim(strings.ReplaceAll(words[i], ",", " "), "\x00")
		}
		switch list, id := words[0], words[1]; {
		case list == ">":
			want = append(want, strings.TrimSpace(line[1:]))
		case list == "!":
			missed = append(missed, id)
		case id == "":
			l[list] = nil
		case len(words) == 4:
			delete(l[list], id)
		default:
			amount, err := strconv.ParseInt(words[5], 10, 64)
			testdb.Must(f.t, err)
			l[list][id] = audit.Listed{ID: id, Reference: words[2], PaymentIntent: words[3], Status: words[4], Amount: amount, Currency: words[6], Moves: words[7]}
		}
	}
	return want, missed
}

// listed are the sections of testdata/listed.txt, and the lists of the first one: what the ledger says.
func (f *fixture) listed() ([]txtar.File, lists) {
	f.t.Helper()
	archive, err := txtar.ParseFile("testdata/listed.txt")
	testdb.Must(f.t, err)
	l := lists{"payment": {}, "refund": {}, "dispute": {}}
	f.edit(l, archive.Files[0])
	return archive.Files[1:], l
}

func list(items map[string]audit.Listed) iter.Seq2[audit.Listed, error] {
	return func(yield func(audit.Listed, error) bool) {
		for _, id := range slices.Sorted(maps.Keys(items)) {
			if !yield(items[id], nil) {
				return
			}
		}
	}
}

func (l lists) provided() audit.Provided {
	return audit.Provided{Payments: list(l["payment"]), Refunds: list(l["refund"]), Disputes: list(l["dispute"])}
}

// TestReconcile compares what the provider lists with the ledger: in each case of testdata/listed.txt, where a list
// breaks off, and where the ledger lacks postings.
func TestReconcile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for name, id := range maps.Clone(f.ids) {
		f.ids["reference_of_"+name] = testdb.All[string](t, f.db,
			`select coalesce(max(data ->> 'reference'), '') from ledger_events where version = 1 and stream_id = $1`, id)[0]
	}
	cases, _ := f.listed()
	judged, broken := map[string]bool{}, map[string]bool{}
	for _, test := range cases {
		_, l := f.listed()
		want, missing := f.edit(l, test)
		checks, missed, err := audit.Reconcile(t.Context(), f.db.Pool(), l.provided())
		if diff := cmp.Diff(sorted(want), violated(checks)); diff != "" || err != nil || !slices.Equal(missed, missing) {
			t.Errorf("%s: %v, missed %q, want %q, violated (-want +got):\n%s", test.Name, err, missed, missing, diff)
		}
		for _, name := range want {
			broken[name] = true
		}
		for _, c := range checks {
			judged[c.Name] = true
		}
	}
	testrun.Same(t, "checks that a case violates", judged, broken)

	down := errors.New("down")
	breaksOff := func(yield func(audit.Listed, error) bool) { yield(audit.Listed{}, down) }
	for i := range 3 {
		_, l := f.listed()
		provided := l.provided()
		*[]*iter.Seq2[audit.Listed, error]{&provided.Payments, &provided.Refunds, &provided.Disputes}[i] = breaksOff
		if _, _, err := audit.Reconcile(t.Context(), f.db.Pool(), provided); !errors.Is(err, down) {
			t.Errorf("list %d: %v", i, err)
		}
	}

	f.run("breakable")
	f.exec(`
delete from ledger_postings where stream_id = '{sold}' and debit like 'psp_receivable:%';
delete from ledger_postings where stream_id = '{refunded}' and credit like 'psp_receivable:%' and amount = 400`)
	_, l := f.listed()
	checks, _, err := audit.Reconcile(t.Context(), f.db.Pool(), l.provided())
	testdb.Must(t, err)
	testrun.Same(t, "violated", []string{"provider: captured sums equal the ledger's", "provider: refunded sums equal the ledger's"}, violated(checks))
}

// TestReconcile_besideTraffic records outcomes before or after a list is read.
func TestReconcile_besideTraffic(t *testing.T) {
	testrun.Long(t, "it has a database for each case")
	t.Parallel()
	for name, traffic := range map[string]map[string]func(*fixture){
		"a charge is captured before the list": {"before": func(f *fixture) { f.pay("early") }},
		"a charge is captured after the list":  {"payments": func(f *fixture) { f.pay("late") }},
		"a refund succeeds after the list":     {"refunds": func(f *fixture) { f.endRefund("returning", "re_returning", false) }},
		"a refund is reversed after the list":  {"refunds": func(f *fixture) { f.endRefund("part", "re_part", true) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			_, l := f.listed()
			provided := l.provided()
			then := func(all iter.Seq2[audit.Listed, error], when string) iter.Seq2[audit.Listed, error] {
				return func(yield func(audit.Listed, error) bool) {
					all(yield)
					if do := traffic[when]; do != nil {
						do(f)
					}
				}
			}
			provided.Refunds = then(provided.Refunds, "refunds")
			provided.Payments = then(func(yield func(audit.Listed, error) bool) {
				if do := traffic["before"]; do != nil {
					do(f)
					f.edit(l, txtar.File{Data: []byte("payment pi_early {early} pi_early succeeded 1000 USD\n")})
				}
				list(l["payment"])(yield)
			}, "payments")
			checks, _, err := audit.Reconcile(t.Context(), f.db.Pool(), provided)
			if got := violated(checks); len(got) != 0 || err != nil {
				t.Errorf("violated: %v, %v", got, err)
			}
		})
	}
}

// TestReconcile_readsTheLedgerOnce: not once more for each charge.
func TestReconcile_readsTheLedgerOnce(t *testing.T) {
	testrun.Long(t, "it audits 10,000 charges")
	t.Parallel()
	f := newFixture(t)
	f.exec(`
with charges as (
  select 'ch_' || n as id from generate_series(1, 10000) n
), events as (
  insert into ledger_events
         (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
  select gen_random_uuid(), id, version, ('{charge.requested.v1,payment.captured.v1}'::text[])[version], 'acme',
         jsonb_build_object('currency', 'USD', 'payment_intent', id), '{}', now()
    from charges, generate_series(1, 2) version
)
insert into ledger_postings
       (stream_id, version, leg, merchant_id, debit, credit, amount, currency)
select id, 2, 1, 'acme', 'psp_receivable:stripe:USD', 'customer_receivable:acme:USD', 1, 'USD'
  from charges`)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, l := f.listed()
	if _, _, err := audit.Reconcile(ctx, f.db.Pool(), l.provided()); err != nil {
		t.Errorf("10000 charges: %v", err)
	}
}

// keepUp audits, as a worker, all that is new.
func (f *fixture) keepUp(worker *postgres.DB) (violated []audit.Check) {
	f.t.Helper()
	testdb.CatchUp(f.t, f.db, "audit", func() error {
		more, _, err := audit.Continue(f.t.Context(), worker)
		violated = append(violated, more...)
		return err
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
	testrun.Long(t, "it audits again and again")
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
	testrun.Long(t, "it writes thousands of charges")
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
