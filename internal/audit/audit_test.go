package audit_test

import (
	"context"
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
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger/books"
)

func TestRun_besideTraffic(t *testing.T) {
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
		_, err := books.AddUp(t.Context(), f.db)
		testdb.Must(t, err)
		report, err := audit.Run(t.Context(), f.db.Pool())
		testdb.Must(t, err)
		if got := violated(report.Checks); len(got) > 0 {
			stop()
			t.Errorf("violated: %v", got)
		}
	}
	testdb.Must(t, g.Wait())
}

// plant is a section of testdata/planted.txt: statements that violate a check, and others that they cannot help
// violating.
type plant struct {
	name, sql string
	summed    bool // behind balances that are up to date: elsewhere a violation is not also found in these
	want      []string
}

// planted are the sections of testdata/planted.txt behind those that have but a name.
func planted() (all []plant) {
	for _, file := range scripts.Files {
		at := strings.LastIndex(file.Name, ": ")
		if at < 0 {
			continue
		}
		p := plant{name: file.Name[at+2:], sql: string(file.Data), summed: strings.Contains(string(file.Data), "-- behind the balances\n")}
		if check := file.Name[:at]; check != "nothing" {
			p.want = append(p.want, check)
		}
		if also, found := strings.CutPrefix(p.sql, "-- also: "); found {
			also, _, _ = strings.Cut(also, "\n")
			p.want = append(p.want, strings.Split(also, "; ")...)
		}
		all = append(all, p)
	}
	return all
}

// TestRun_reportsEachViolation changes a legal history, which is in order and which each check covers, by statements
// that are rolled back with the audit.
func TestRun_reportsEachViolation(t *testing.T) {
	testdb.Long(t, "it makes the checks for each of many cases")
	t.Parallel()
	plants, broken := planted(), []string{}
	for _, p := range plants {
		broken = append(broken, p.want[:min(len(p.want), 1)]...)
	}
	free := map[bool]chan *fixture{false: make(chan *fixture, 2), true: make(chan *fixture, 1)}
	for summed, idle := range free {
		for range cap(idle) {
			f := newFixture(t)
			if summed {
				f.addUp()
				for _, c := range f.audit().Checks {
					if c.Violated > 0 || c.Checked == 0 {
						t.Fatalf("of a legal history: %+v", c)
					}
				}
			}
			f.run("breakable")
			idle <- f
		}
	}
	report, err := audit.Run(t.Context(), testdb.Reused(t).Pool())
	testdb.Must(t, err)
	var checks []string
	for _, c := range report.Checks {
		if checks = append(checks, c.Name); c.Checked != 0 || c.Violated != 0 || c.Examples == nil || !report.OK {
			t.Errorf("of an empty database: %+v", c)
		}
	}
	testrun.Same(t, "checks that a planted violation breaks", slices.Compact(sorted(checks)), slices.Compact(sorted(broken)))
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			f := <-free[p.summed]
			defer func() { free[p.summed] <- f }()
			report := f.auditWith(t, p.sql)
			if diff := cmp.Diff(sorted(p.want), violated(report.Checks)); diff != "" || report.OK != (len(p.want) == 0) {
				t.Errorf("violated (-want +got):\n%s\n%+v", diff, report)
			}
		})
	}
}

// TestRun_readsTheLedgerByPages checks each stream once, also those behind the first page, and a long one.
func TestRun_readsTheLedgerByPages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run("breakable")
	was := named(t, f.audit(), "streams are legal")
	f.run("many streams")
	if is := named(t, f.audit(), "streams are legal"); is.Checked != was.Checked+701 || is.Violated != 701 || len(is.Examples) != 5 {
		t.Errorf("%+v, was %+v; want 701 streams more and violated", is, was)
	}
}

// TestRun_goesOnPastWhatItCannotRead: events of every type that hold nothing, or values of
// wrong types, and rows that are too long, are violations and do not end the audit. It still finds a forged outcome.
func TestRun_goesOnPastWhatItCannotRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run("breakable")
	f.exec(`select append_event('{paying}', 'charge.succeeded.v1', '{}')`)
	for i, kind := range append(domain.EventTypes(), domain.EventType{Name: "charge.exploded.v1"}) {
		for j, data := range []string{`{}`, `{"amount":"much","refund_id":7,"items":"none","provider":[],"event_id":{},"steps":9,"notify":"no"}`} {
			f.exec(fmt.Sprintf(`
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), 'ch_%d_%d', 1, '%s', 'acme', '%s', '{}', now())`, i, j, kind.Name, data))
		}
	}
	f.run("too long")
	report := f.audit()
	for _, name := range []string{"streams are legal", "one outcome per charge, and one capture if it succeeded", "an answer names what it accepted"} {
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
	if first := named(t, report, "streams are legal").Examples[0]; !strings.HasPrefix(first, "ch_: the events have more than") {
		t.Errorf("of a charge that is too long it says %s", first)
	}
	f.exec(`drop table inbox_holders`)
	if report, err := audit.Run(t.Context(), f.db.Pool()); err == nil {
		t.Errorf("an audit that cannot be finished is no error: %+v", report)
	}
}

func (f *fixture) audit() audit.Report {
	f.t.Helper()
	report, err := audit.Run(f.t.Context(), f.db.Pool())
	testdb.Must(f.t, err)
	agrees(f.t, f.db.Pool(), report)
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
	report, err := audit.Run(t.Context(), tx)
	testdb.Must(t, err)
	agrees(t, tx, report)
	return report
}

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
