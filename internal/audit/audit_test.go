package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

func TestRun(t *testing.T) {
	t.Parallel()

	t.Run("an_empty_database_is_in_order", func(t *testing.T) {
		t.Parallel()
		report, err := audit.Run(t.Context(), testdb.Reused(t))
		if err != nil {
			t.Fatal(err)
		}
		if !report.OK || len(report.Checks) == 0 {
			t.Fatalf("got %+v", report)
		}
		for _, c := range report.Checks {
			if c.Checked != 0 || c.Violated != 0 || c.Examples == nil {
				t.Errorf("got %+v", c)
			}
		}
	})

	t.Run("a_legal_history_is_in_order_and_every_check_has_covered_it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.project()
		for range 2 { // the second time on a connection that knows the statements
			report := w.audit()
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

	t.Run("traffic_does_not_make_a_check_fail", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		const charges = 60
		g, ctx := errgroup.WithContext(t.Context())
		done, stop := context.WithCancel(ctx)
		g.Go(func() error {
			defer stop()
			for i := range charges {
				if _, err := accept(ctx, w.db, "acme", fmt.Sprintf("traffic-%d", i), true); err != nil {
					return err
				}
			}
			return nil
		})
		g.Go(func() error {
			for done.Err() == nil {
				if _, err := ledger.Project(ctx, w.db); err != nil {
					return err
				}
			}
			return nil
		})
		g.Go(func() error {
			for done.Err() == nil {
				report, err := audit.Run(ctx, w.db)
				if err != nil {
					return err
				}
				if got := violated(report.Checks); len(got) != 0 {
					return fmt.Errorf("violated: %v", got)
				}
			}
			return nil
		})
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("an_audit_that_cannot_be_finished_is_an_error", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.exec(`drop table inbox_quarantine`)
		if report, err := audit.Run(t.Context(), w.db); err == nil {
			t.Fatalf("got %+v", report)
		}
	})
}

// TestRun_judges changes a legal history by statements that are rolled back with the audit.
func TestRun_judges(t *testing.T) {
	t.Parallel()
	// A consumer group beside the one that feeds the inbox reads the same outbox. What it has
	// read says nothing about the inbox.
	const (
		hasReadAll = `
insert into outbox_offsets (topic, consumer_group, transaction_id, "offset")
select topic, 'analytics', transaction_id, "offset"
  from outbox
 order by transaction_id desc, "offset" desc
 limit 1;`
		hasReadNothing = `insert into outbox_offsets (topic, consumer_group, transaction_id, "offset") values ('charges', 'analytics', '0', 0);`
		old            = `update outbox set created_at = now() - interval '1 hour';`
		passed         = `
update outbox_offsets
   set (transaction_id, "offset") = (select transaction_id, "offset" from outbox order by transaction_id desc, "offset" desc limit 1)
 where consumer_group = 'inbox';`
	)
	w := newWorld(t)                // its charge "fresh" waits in the outbox
	for _, test := range []struct { // one at a time: they share a world
		name, statements string
		want             map[string]bool
	}{
		{"a message behind one that waits is not stuck", `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, waits, due_at)
select receiver, message_id || ' waits', ordering_key, 'stripe.waits', '', '{}', '', 1, now() + interval '1 hour'
  from inbox
 where ordering_key = '{paying}'
 limit 1;
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, due_at)
select receiver, message_id || ' is behind', ordering_key, 'stripe.behind', '', '{}', '', now() - interval '1 hour'
  from inbox
 where ordering_key = '{paying}'
   and type = 'stripe.waits'`, set()},
		{"what retention removed is not missed", `
delete from outbox
 where transaction_id <= (select transaction_id from outbox_offsets o where o.topic = outbox.topic);
delete from inbox
 where status = 'done'
   and ordering_key in ('{sold}', '{bought}', '{declined}', '{refused}', '{canceled}', '{refunded}');
update idempotency_keys set body = null, content_type = null`, set()},
		{"a notification that an operator discarded is in order", `
update inbox
   set status = 'discarded', decided_by = 'ann', decided_at = now(), due_at = now() - interval '1 hour'
 where ordering_key = '{undelivered}'
   and receiver = 'notification'`, set()},
		{"another group is ahead of the inbox", hasReadAll, set()},
		{"another group is behind the inbox", hasReadNothing, set()},
		{"another group has read what the inbox has not received for an hour", hasReadAll + old, set("no message is stuck")},
		{
			"another group is behind, and the inbox's has passed what it did not receive", hasReadNothing + passed,
			set("every message that was passed was received", "no accepted charge is lost"),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			report := w.auditWith(t, test.statements)
			if diff := cmp.Diff(test.want, violated(report.Checks)); diff != "" {
				t.Errorf("violated (-want +got):\n%s\n%+v", diff, report)
			}
		})
	}
}

func (w *world) audit() audit.Report {
	w.Helper()
	report, err := audit.Run(w.Context(), w.db)
	if err != nil {
		w.Fatal(err)
	}
	return report
}

// violated are the names of the checks that failed. A check that failed without
// an example is not among them, nor one that gives too many.
func violated(checks []audit.Check) map[string]bool {
	names := map[string]bool{}
	for _, c := range checks {
		if c.Violated > 0 && len(c.Examples) > 0 && len(c.Examples) <= 5 {
			names[c.Name] = true
		}
	}
	return names
}

func named(t *testing.T, report audit.Report, name string) audit.Check {
	t.Helper()
	i := slices.IndexFunc(report.Checks, func(c audit.Check) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no check is called %q", name)
	}
	return report.Checks[i]
}

func set(names ...string) map[string]bool {
	s := map[string]bool{}
	for _, name := range names {
		s[name] = true
	}
	return s
}

func TestRun_finds(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	if names := slices.Sorted(maps.Keys(planted())); !cmp.Equal(names, allChecks(t)) {
		t.Fatalf("checks without a planted violation, and the other way round:\n%s", cmp.Diff(names, allChecks(t)))
	}
	// Two worlds of each kind, whose cases are rolled back one after another. Without
	// projections a violation is not also found in them.
	worlds := map[bool]chan *world{false: make(chan *world, 2), true: make(chan *world, 2)}
	for projected, free := range worlds {
		for range cap(free) {
			w := newWorld(t)
			if projected {
				w.project()
			}
			w.exec(breakable)
			free <- w
		}
	}
	for check, plants := range planted() {
		_, projected := plantedInProjections()[check]
		for _, p := range plants {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				w := <-worlds[projected]
				defer func() { worlds[projected] <- w }()
				report := w.auditWith(t, p.plant)
				want := set(append(p.also, check)...)
				if diff := cmp.Diff(want, violated(report.Checks)); diff != "" || report.OK {
					t.Errorf("violated (-want +got):\n%s\n%+v", diff, named(t, report, check))
				}
			})
		}
	}
}

// auditWith is the audit after statements, which are rolled back with it.
func (w *world) auditWith(t *testing.T, statements string) audit.Report {
	t.Helper()
	tx, err := w.db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	if _, err := tx.Exec(t.Context(), w.named(statements), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%v\nin %s", err, statements)
	}
	report, err := audit.Run(t.Context(), within{tx})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// within is a transaction whose snapshots show its own writes.
type within struct{ tx pgx.Tx }

func (w within) Snapshot(ctx context.Context) (pgx.Tx, error) { return w.tx.Begin(ctx) }

func allChecks(t *testing.T) []string {
	t.Helper()
	report, err := audit.Run(t.Context(), testdb.Reused(t))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range report.Checks {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names
}

// TestReport adds checks, and encodes as the contract says.
func TestReport(t *testing.T) {
	t.Parallel()
	var r audit.Report
	r.Add(audit.Check{Name: "one", Checked: 3})
	if !r.OK {
		t.Error("a report without violations is not OK")
	}
	r = audit.Report{}
	r.Add(audit.Check{Name: "streams are legal", Checked: 2, Violated: 1, Examples: []string{"ch_1: why"}})
	r.Add(audit.Check{Name: "two", Checked: 1, Examples: []string{}})
	got, err := json.Marshal(r)
	want := `{"ok":false,"checks":[{"name":"streams are legal","checked":2,"violated":1,"examples":["ch_1: why"]},{"name":"two","checked":1,"violated":0,"examples":[]}]}`
	if string(got) != want || err != nil {
		t.Errorf("encoded as %s (%v), want %s", got, err, want)
	}
}
