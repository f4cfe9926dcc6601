package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox/deadletter"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger/books"
)

func TestRun_besideTraffic(t *testing.T) {
	testrun.Long(t, "it sends traffic")
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
	testrun.Long(t, "it makes the checks for each of many cases")
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

// TestRun_goesOnPastWhatItCannotRead: events of every type that hold nothing, or values of
// wrong types, and rows that are too long, are violations and do not end the audit. It still finds a forged outcome.
// Each stream is checked once, also those behind the first page, and a long one.
func TestRun_goesOnPastWhatItCannotRead(t *testing.T) {
	testrun.Long(t, "its rows are large")
	t.Parallel()
	f := newFixture(t)
	f.run("breakable")
	was := named(t, f.audit(), "streams are legal")
	f.run("many streams")
	if is := named(t, f.audit(), "streams are legal"); is.Checked != was.Checked+701 || is.Violated != 701 || len(is.Examples) != 5 {
		t.Errorf("%+v, was %+v; want 701 streams more and violated", is, was)
	}
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

func (f *fixture) timeline(t *testing.T, name, merchant string) audit.Timeline {
	t.Helper()
	tl, err := audit.ReadTimeline(t.Context(), f.db, f.named(name), merchant)
	testdb.Must(t, err)
	return tl
}

// variable are texts that each run writes otherwise: times that are not of this test, ids of events and numbers of messages.
var variable = regexp.MustCompile(`20[0-9]{2}-[0-9T:.+Z-]{15,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b(id|message)=[0-9]+`)

// stable is a timeline as text that each run writes alike. An id of an event is the number of its first appearance.
func (f *fixture) stable(tl audit.Timeline) string {
	var text strings.Builder
	for _, c := range tl.Charges {
		fmt.Fprintf(&text, "%+v\n", c)
	}
	for _, e := range tl.Entries {
		fmt.Fprintf(&text, "%s | %s | %s | %s | %d | %s\n", e.Kind, e.What, e.Who, e.ChargeID, e.Version, e.Detail)
	}
	seen, names := map[string]string{}, make([]string, 0, 2*len(f.ids))
	for name, id := range f.ids {
		names = append(names, id, "{"+name+"}")
	}
	return variable.ReplaceAllStringFunc(strings.NewReplacer(names...).Replace(text.String()), func(found string) string {
		switch {
		case strings.Contains(found, "="):
			return found[:strings.Index(found, "=")] + "=N"
		case found[4] == '-':
			return "TIME"
		case seen[found] == "":
			seen[found] = fmt.Sprintf("EVENT%d", len(seen)+1)
		}
		return seen[found]
	})
}

// states are messages in every state, each of a charge of its name.
var states = map[string]string{
	"waits": `status = 'pending', waits = 2, fence = 2, last_error = 'waiting: the provider is away', due_at = '2126-01-01 00:00:00.5+00'`,
	"runs":  `status = 'running', fence = 1, attempts = 1, holder = 'host:2'`,
	"next":  `status = 'pending', first = false, fence = 0, holder = null`,
	"lost": `status = 'done', first = false, fence = 3, done_fence = 3, holder = 'host:3', claimed_at = '2126-01-01 00:00:06+00', finished_at = '2126-01-01 00:00:07+00',
		duplicates = 2, duplicated_at = '2126-01-01 00:00:01+00', history = '[
		{"fence": 1, "holder": "host:1", "claimed_at": null, "lease_ended_at": "2126-01-01T00:00:03+00:00", "at": "2126-01-01T00:00:04+00:00"},
		{"fence": 2, "holder": "host:2", "claimed_at": "2126-01-01T00:00:04+00:00", "at": "2126-01-01T00:00:05+00:00", "error": "no"}]'`,
	"dead":  dead,
	"retry": dead,
	"end":   dead,
}

const dead = `status = 'dead', fence = 4, attempts = 4, last_error = 'dead letter: no such thing'`

// TestReadTimeline compares timelines with testdata/timeline.txt, which UPDATE_GOLDEN=1 writes anew.
func TestReadTimeline(t *testing.T) {
	testrun.Long(t, "it stores charges of every state")
	t.Parallel()
	f := newFixture(t)
	f.decide("paying", recorded(domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500, RequestID: "req_42"}))
	f.decide("refunded", recorded(domain.RefundAttemptFailed{RefundID: f.ids["returning"], StatusCode: 502, RequestID: "req_7"}))
	f.run("breakable")
	f.exec(`
select append_event('{bought}', 'charge.praised.v1', '{"message": "a secret"}'); -- is unreadable
select append_event('{sold}', 'refund.requested.v1', '{"refund_id": "re_forged", "amount": 100000000000000000, "notify": false}');
select append_event('{sold}', 'refund.requested.v1', '{"refund_id": "re_forged", "amount": 1, "reason": 5}')`)
	names := []string{"{sold}", "{bought}", "{paying}", "{declined}", "{canceled}", "{refunded}", "{unread}", "key-too-much"}
	f.exec(`insert into inbox_holders values ('fulfillment', 'host:2', '2126-01-01 00:00:01+00')`)
	for _, name := range slices.Sorted(maps.Keys(states)) {
		f.accept("acme", name, true)
		names = append(names, "{"+name+"}")
	}
	f.run("work")
	f.accept("acme", "unread", true)
	for name, state := range states {
		f.exec(`update inbox set ` + state + ` where ordering_key = '{` + name + `}'`)
	}
	message := func(name string) int64 {
		return number(f, f.named(`select id from inbox where ordering_key = '{`+name+`}'`))
	}
	testdb.Must(t, deadletter.Retry(t.Context(), f.db, message("retry"), "cli:ada"))
	testdb.Must(t, deadletter.Discard(t.Context(), f.db, message("end"), "cli:bob"))

	var text strings.Builder
	for _, name := range names {
		tl := f.timeline(t, name, "")
		fmt.Fprintf(&text, "\n# %s\n%s", name, f.stable(tl))
		if encoded, err := json.Marshal(tl); err != nil || strings.Contains(string(encoded), "a secret") || strings.Contains(string(encoded), "payload") {
			t.Errorf("what a merchant wrote for its own use, or a payload, is shown: %s (%v)", encoded, err)
		}
		for i, e := range tl.Entries {
			if e.At.IsZero() || e.At.Location() != time.UTC || i > 0 && e.At.Before(tl.Entries[i-1].At) {
				t.Errorf("entry %d is %+v as of %v", i, e, tl.AsOf)
			}
		}
	}
	testrun.Golden(t, "timeline.txt", text.String())
}

func TestReadTimeline_findsByName(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.accept("globex", "sold of globex", true)
	f.refuse("key-sold")
	f.exec(`update idempotency_keys set key = 're_no-refund' where key = 'key-fresh'`)
	for _, test := range []struct{ what, name, merchant, want string }{
		{"a charge", "{refunded}", "", "{refunded}"},
		{"a refund", "{part}", "acme", "{refunded}"},
		{"a dispute", "du_1", "", "{bought}"},
		{"a key of all merchants", "key-sold", "", "{sold of globex} {sold}"},
		{"a key of one merchant", "key-sold", "globex", "{sold of globex}"},
		{"a key whose request was refused", "key-too-much", "", ""},
		{"a key that looks like a refund", "re_no-refund", "", "{fresh}"},
	} {
		var got []string
		for _, c := range f.timeline(t, test.name, test.merchant).Charges {
			got = append(got, c.ID)
		}
		testrun.Same(t, test.what, sorted(strings.Fields(f.named(test.want))), sorted(got))
	}
	for name, merchant := range map[string]string{
		"ch_unknown": "", "re_unknown": "", "unknown": "", "": "", "{refunded}": "globex", "key-refunded": "globex",
	} {
		if tl, err := audit.ReadTimeline(t.Context(), f.db, f.named(name), merchant); !errors.Is(err, audit.ErrNotFound) {
			t.Errorf("%q of %q: %v, %+v", name, merchant, err, tl)
		}
	}
}
