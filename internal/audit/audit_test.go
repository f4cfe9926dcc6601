package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

func TestRun(t *testing.T) {
	t.Parallel()

	t.Run("an empty database is in order", func(t *testing.T) {
		t.Parallel()
		report, err := audit.Run(t.Context(), testdb.Reused(t))
		if err != nil || !report.OK || len(report.Checks) == 0 {
			t.Fatalf("got %+v, %v", report, err)
		}
		for _, c := range report.Checks {
			if c.Checked != 0 || c.Violated != 0 || c.Examples == nil {
				t.Errorf("got %+v", c)
			}
		}
	})

	t.Run("a legal history is in order, and every check covers it", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.addUp()
		for range 2 { // the second time on a connection that knows the statements
			report := f.audit()
			if got := violated(report.Checks); len(got) != 0 || !report.OK {
				t.Fatalf("violated: %v", got)
			}
			for _, c := range report.Checks {
				if c.Checked == 0 {
					t.Errorf("%s: is over no case", c.Name)
				}
			}
		}
	})

	t.Run("traffic does not make a check fail", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		g, ctx := errgroup.WithContext(t.Context())
		done, stop := context.WithCancel(ctx)
		g.Go(func() error {
			defer stop()
			for i := range 60 {
				if err := f.tryAccept(ctx, "acme", fmt.Sprintf("traffic-%d", i), true); err != nil {
					return err
				}
			}
			return nil
		})
		for done.Err() == nil {
			_, err := ledger.AddUp(t.Context(), f.db)
			testdb.Must(t, err)
			report, err := audit.Run(t.Context(), f.db)
			testdb.Must(t, err)
			if got := violated(report.Checks); len(got) > 0 {
				stop()
				t.Errorf("violated: %v", got)
			}
		}
		testdb.Must(t, g.Wait())
	})

	t.Run("an audit that cannot be finished is an error", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.exec(`drop table inbox_holders`)
		if report, err := audit.Run(t.Context(), f.db); err == nil {
			t.Fatalf("got %+v", report)
		}
	})
}

const (
	providersEvent = `
insert into outbox (topic, message_id, payload, metadata)
values ('charges', 'evt_2', '', '{"type": "stripe.refund.updated", "ordering_key": "{paying}"}')`
	behindPaying = `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, due_at, received_at)
values ('fulfillment', 'evt_2', '{paying}', 'stripe.behind', '', '{}', '', now() - interval '1 hour', now() - interval '1 hour')`
)

// TestRun_reportsOnlyWhatIsViolated changes a legal history by statements that are rolled back with the audit.
func TestRun_reportsOnlyWhatIsViolated(t *testing.T) {
	t.Parallel()
	f := newFixture(t)              // its charge "fresh" waits in the outbox
	for _, test := range []struct { // one at a time: they share the database
		name, statements string
		want             []string
	}{
		{"another subscriber has ended its message, the notification has not", `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, done_fence, finished_at)
select 'points', message_id, ordering_key, type, '', '{}', '', 'done', 1, 1, now()
  from inbox
 where ordering_key = '{undelivered}'
   and type = 'charge.succeeded.v1'`, nil},
		{"a message that was received and is still in the outbox", `
insert into outbox (topic, message_id, payload, metadata)
select 'charges', message_id, payload, metadata
  from inbox
 where receiver = 'fulfillment'
   and type like '%.v1'`, nil},
		{"an event of the provider in the outbox", providersEvent, nil},
		{"an event of the provider that no worker receives", providersEvent + `;
update outbox set created_at = now() - interval '2 minutes' where message_id = 'evt_2'`, []string{overdue}},
		{"a message behind one that waits is not stuck", `
update inbox set status = 'pending', waits = 1 where ordering_key = '{paying}';` + behindPaying, nil},
		{"a message behind a dead letter is not stuck", `
update inbox set status = 'dead' where ordering_key = '{paying}';` + behindPaying, []string{overdue}},
		{"a key has no first message for seconds", `
update inbox set status = 'done', first = false, done_fence = fence, finished_at = now() where ordering_key = '{sold}' and receiver = 'fulfillment';
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, received_at)
values ('fulfillment', 'evt_2', '{sold}', 'stripe.behind', '', '{}', '', now() - interval '1 hour')`, nil},
		{"a message that was claimed by a holder that is gone for seconds", `
delete from inbox_holders;
update inbox set claimed_at = now() where status = 'running'`, nil},
		{"what waits for a merchant that is paused is not overdue", `
insert into pauses (what, merchant_id, paused) select 'merchant', merchant_id, true from merchants;
update inbox set status = 'pending', due_at = now() - interval '2 minutes', partition_key = (select min(merchant_id) from ledger_events where stream_id = ordering_key)
 where ordering_key = '{paying}'`, nil},
		{"what waits for a receiver that is paused is not overdue", `
insert into pauses (what, paused) values ('fulfillment', true);
update inbox set status = 'pending', due_at = now() - interval '2 minutes' where ordering_key = '{paying}';
update outbox set created_at = now() - interval '2 minutes' where metadata ->> 'ordering_key' = '{fresh}'`, nil},
		{"what waits for one that was resumed is", `
insert into pauses (what, paused) values ('fulfillment', false);
update inbox set status = 'pending', due_at = now() - interval '2 minutes' where ordering_key = '{paying}'`, []string{overdue}},
		{"what retention removed is not missed", `
delete from inbox
 where status = 'done'
   and ordering_key in ('{sold}', '{bought}', '{declined}', '{refused}', '{canceled}', '{refunded}');
update idempotency_keys set body = null`, nil},
		{"a notification that an operator discarded is in order", `
update inbox
   set status = 'discarded', first = false, decided_by = 'ann', decided_at = now(), due_at = now() - interval '1 hour'
 where ordering_key = '{undelivered}'
   and receiver = 'notification'`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			report := f.auditWith(t, test.statements)
			if diff := cmp.Diff(sorted(test.want), violated(report.Checks)); diff != "" {
				t.Errorf("violated (-want +got):\n%s\n%+v", diff, report)
			}
		})
	}
}

func TestRun_reportsEachViolation(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	empty, err := audit.Run(t.Context(), testdb.Reused(t))
	testdb.Must(t, err)
	var checks, broken []string
	for _, c := range empty.Checks {
		checks = append(checks, c.Name)
	}
	for _, p := range slices.Concat(planted, plantedInBalances) {
		broken = append(broken, p.check)
	}
	if diff := cmp.Diff(slices.Compact(sorted(broken)), sorted(checks)); diff != "" {
		t.Fatalf("checks that a planted violation breaks (-) and checks (+):\n%s", diff)
	}
	// Two databases of each kind, whose cases are rolled back one after another. Without sums a
	// violation is not also found in the balances.
	for added, plants := range map[bool][]plant{false: planted, true: plantedInBalances} {
		free := make(chan *fixture, 2)
		for range cap(free) {
			f := newFixture(t)
			if added {
				f.addUp()
			}
			f.exec(breakable)
			free <- f
		}
		for _, p := range plants {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				f := <-free
				defer func() { free <- f }()
				report := f.auditWith(t, p.plant)
				if diff := cmp.Diff(sorted(append(p.also, p.check)), violated(report.Checks)); diff != "" || report.OK {
					t.Errorf("violated (-want +got):\n%s\n%+v", diff, named(t, report, p.check))
				}
			})
		}
	}
}

// streams makes n streams of so many events, none of which can be read; the last
// stream has 2,500 events and a gap.
const streams = `
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_' || lpad(n::text, 4, '0'), v, 'none', 1, 'acme', '{}', '{}', now()
  from generate_series(1, 700) n,
       generate_series(1, 3) v;
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_long', v, 'none', 1, 'acme', '{}', '{}', now()
  from generate_series(1, 2501) v
 where v <> 2000`

// TestRun_readsTheLedgerByPages checks each stream once, also those behind the first page, and a long one.
func TestRun_readsTheLedgerByPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(breakable)
	was := named(t, f.audit(), legal)
	f.exec(streams)
	if is := named(t, f.audit(), legal); is.Checked != was.Checked+701 || is.Violated != 701 || len(is.Examples) != 5 {
		t.Errorf("%+v, was %+v; want 701 streams more and violated", is, was)
	}
}

// TestRun_goesOnPastWhatItCannotRead: events of every type that hold nothing, or values of
// wrong types, and rows that are too long, are violations and do not end the audit. It still finds a forged outcome.
func TestRun_goesOnPastWhatItCannotRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(breakable)
	f.exec(appendEvent("paying", "charge.succeeded.v1", `{}`))
	for i, kind := range append(domain.EventTypes(), domain.EventType{Name: "charge.exploded.v1"}) {
		for j, data := range []string{`{}`, `{"amount":"much","refund_id":7,"items":"none","provider":[],"event_id":{},"steps":9,"notify":"no"}`} {
			f.exec(fmt.Sprintf(`
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), 'ch_%d_%d', 1, '%s', 1, 'acme', '%s', '{}', now())`, i, j, kind.Name, data))
		}
	}
	f.exec(`
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_', v, 'charge.cancel_requested.v1', 1, 'acme', jsonb_build_object('x', repeat('x', 1048000)), '{}', now()
  from generate_series(1, 17) v;
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, headers, body, expires_at)
values ('acme', 'POST /v1/charges', 'long', '', 202, jsonb_build_object('Location', jsonb_build_array(repeat('x', 9999))), convert_to(repeat('x', 1000000), 'UTF8'), now())`)
	report := f.audit()
	for _, name := range []string{legal, outcome, answers} {
		c := named(t, report, name)
		if c.Violated == 0 {
			t.Errorf("%s: %+v", name, c)
		}
		for _, complaint := range c.Examples {
			if len(complaint) > 500 {
				t.Errorf("%s: a complaint of %d bytes", name, len(complaint))
			}
		}
	}
	if first := named(t, report, legal).Examples[0]; !strings.HasPrefix(first, "ch_: the events have more than") {
		t.Errorf("of a charge that is too long it says %s", first)
	}
}

func (f *fixture) audit() audit.Report {
	f.t.Helper()
	report, err := audit.Run(f.t.Context(), f.db)
	testdb.Must(f.t, err)
	agrees(f.t, f.db, f.db, report)
	return report
}

// auditWith is the audit after statements, which are rolled back with it.
func (f *fixture) auditWith(t *testing.T, statements string) audit.Report {
	t.Helper()
	tx, err := f.db.Pool().Begin(t.Context())
	testdb.Must(t, err)
	defer func() {
		testdb.Must(t, tx.Rollback(context.WithoutCancel(t.Context())))
	}()
	if _, err := tx.Exec(t.Context(), f.named(statements), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%v\nin %s", err, statements)
	}
	report, err := audit.Run(t.Context(), within{tx})
	testdb.Must(t, err)
	agrees(t, within{tx}, tx, report)
	return report
}

// within is a transaction whose reads show its own writes.
type within struct{ pgx.Tx }

func (w within) Read(ctx context.Context, b *pgx.Batch) error { return w.SendBatch(ctx, b).Close() }

// violated are the names of the checks that failed, in order. A check that failed without
// an example is not among them, nor one that gives too many.
func violated(checks []audit.Check) []string {
	names := []string{}
	for _, c := range checks {
		if c.Violated > 0 && len(c.Examples) > 0 && len(c.Examples) <= 5 {
			names = append(names, c.Name)
		}
	}
	return sorted(names)
}

func sorted(names []string) []string {
	return slices.Sorted(slices.Values(append([]string{}, names...)))
}

func named(t *testing.T, report audit.Report, name string) audit.Check {
	t.Helper()
	i := slices.IndexFunc(report.Checks, func(c audit.Check) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no check is called %q", name)
	}
	return report.Checks[i]
}

// TestReport adds checks, and encodes as the contract says.
func TestReport(t *testing.T) {
	t.Parallel()
	var r audit.Report
	r.Add(audit.Check{Name: "streams are legal", Checked: 2, Violated: 1, Examples: []string{"ch_1: why"}})
	r.Add(audit.Check{Name: "two", Checked: 1, Examples: []string{}})
	got, err := json.Marshal(r)
	want := `{"ok":false,"checks":[{"name":"streams are legal","checked":2,"violated":1,"examples":["ch_1: why"]},{"name":"two","checked":1,"violated":0,"examples":[]}]}`
	if string(got) != want || err != nil {
		t.Errorf("encoded as %s (%v), want %s", got, err, want)
	}
}
