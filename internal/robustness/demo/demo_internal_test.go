package demo

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

func TestInDatabase(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"postgres://me:pw@db:5433/mine?sslmode=require": "postgres://me:pw@db:5433/other?sslmode=require",
		"postgresql:///mine?host=%2Ftmp&dbname=x":       "postgresql:///other?host=%2Ftmp",
		"postgres://db": "postgres://db/other",
	} {
		if got, err := inDatabase(server, "other"); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", server, got, err, want)
		}
	}
}

// TestReportFindings returns an error where other checks are violated than expected.
func TestReportFindings(t *testing.T) {
	t.Parallel()
	for _, asExpected := range []bool{true, false} {
		var out strings.Builder
		f := Finding{Guard: Guards()[0], AsExpected: asExpected, Violated: []harness.Check{{Name: "streams are legal", Violated: 1, Examples: []string{"ch_1"}}}}
		err := reportFindings(Options{Stdout: &out}, []Finding{f})
		if errors.Is(err, ErrBroken) == asExpected || strings.Count(out.String(), "streams are legal, for example ch_1") != 1 {
			t.Errorf("as expected is %v: %v, and printed\n%s", asExpected, err, out.String())
		}
	}
	if err := Break(t.Context(), Options{}, "no_such_guard"); err == nil {
		t.Error("an unknown guard is accepted")
	}
}

// TestLab_endsWithTheDemo: the end of the demo ends the action in flight, and no other begins.
func TestLab_endsWithTheDemo(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{}, 2)
	sandbox := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { begun <- struct{}{} }))
	defer sandbox.Close()
	ctx, cancel := context.WithCancel(t.Context())
	l, done := &Lab{}, make(chan error)
	cut := func() { // the request lives longer than the demo
		_, _, err := l.Do(t.Context(), "cut-provider", nil)
		done <- err
	}
	l.open(ctx, &run{Options: Options{Now: time.Now}, stage: &stage{merchant: &merchant{sandbox: harness.Sandbox(sandbox.URL)}}})
	go cut()
	<-begun
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the action ended with %v", err)
	}
	if len(begun) != 1 {
		t.Error("the demo's own faults were not restored")
	}
	l.close()
	go cut()
	if err := <-done; !errors.Is(err, errNotReady) {
		t.Errorf("another action ended with %v", err)
	}
}

// TestNewPlan: a plan is repeated by its seed, and a short one has a charge of each kind.
func TestNewPlan(t *testing.T) {
	t.Parallel()
	if p := newPlan(5, 1, "run"); p.charges[0].wanted != succeeded {
		t.Errorf("a single charge ends with %v", p.charges[0].wanted)
	}
	p, again, keys, refunds := newPlan(3, 200, "run"), newPlan(3, 200, "run"), map[string]bool{}, 0
	for i, c := range p.charges {
		keys[c.key] = true
		if string(c.body) != string(again.charges[i].body) {
			t.Errorf("another plan of the same seed differs at %s", c.key)
		}
		for _, refund := range c.refunds {
			keys[refund.key] = true
			refunds++
		}
	}
	if len(keys) != len(p.charges)+refunds {
		t.Errorf("%d charges and %d refunds have %d keys", len(p.charges), refunds, len(keys))
	}
	weight := 0
	short := newPlan(3, len(kinds), "run")
	for _, k := range kinds {
		weight += k.weight
		if !slices.ContainsFunc(short.charges, func(c *charge) bool { return c.wanted == k.wanted && c.then == k.then }) {
			t.Errorf("a short plan has none that ends with %v %s", k.wanted, k.then)
		}
	}
	if weight != 100 {
		t.Errorf("the weights are %d per cent", weight)
	}
}

func thrice(status int, body string) []harness.Answer {
	a := harness.Answer{Status: status, Body: body}
	return []harness.Answer{a, a, a}
}

// flawless is a run of two charges: one is refunded in part, the other canceled.
func flawless() *evidence {
	refund := &request{makes: "refund", amount: 40, wanted: succeeded, made: made{ID: "re_1", Status: succeeded, Amount: 40}, answers: thrice(http.StatusAccepted, "{}")}
	refusal := &request{makes: "refund", amount: 61, wanted: tooMuch, answers: thrice(http.StatusUnprocessableEntity, `{"type":"`+tooMuch+`"}`)}
	refunded := &charge{refunds: []*request{refund, refusal}}
	refunded.request = request{makes: "charge", amount: 100, wanted: succeeded, made: made{ID: "ch_0", Status: "partially_refunded", Amount: 100}, answers: thrice(http.StatusAccepted, "{}")}
	stopped := &charge{cancel: &request{wanted: canceled, made: made{ID: "ch_1", Status: failed}, answers: thrice(http.StatusAccepted, "{}")}}
	stopped.request = request{makes: "charge", amount: 100, wanted: canceled, made: made{ID: "ch_1", Status: failed, Amount: 100}, answers: thrice(http.StatusAccepted, "{}")}
	stopped.Failure.Code, stopped.cancel.Failure.Code = canceled, canceled
	e := &evidence{
		sent: []*charge{refunded, stopped}, events: 9,
		books:    harness.Books{DuplicatesSuppressed: 1},
		repeated: harness.Repeated{Events: 2, Sent: 4, Delivered: 4},
		chaos:    chaos{struck: map[string]int{killWorker: leastWorkerKills, killAPI: 1, restartDatabase: 1}, inFlight: 1, programs: 5},
	}
	e.notify("ch_0", "charge.succeeded")
	e.notify("ch_1", "charge.failed")
	e.notify("re_1", "refund.succeeded")
	return e
}

func (e *evidence) notify(reference, kind string) {
	e.books.Notifications = append(e.books.Notifications, harness.Notification{Reference: reference, Type: kind, Deliveries: 1, Effects: 1})
}

// defects are what a run can show, each with the check that must find it.
var defects = []struct {
	name  string
	plant func(e *evidence, refunded, stopped *charge)
	found string
}{
	{"nothing", func(*evidence, *charge, *charge) {}, ""},
	{"a request without an answer", func(_ *evidence, c, _ *charge) { c.answers = c.answers[:2] }, oneAnswer},
	{"a replay with another byte", func(_ *evidence, c, _ *charge) { c.answers[2].Body += " " }, oneAnswer},
	{"a cancellation whose replay differs", func(_ *evidence, _, c *charge) { c.cancel.answers[2].Body += " " }, oneAnswer},
	{"a refund whose replay differs", func(_ *evidence, c, _ *charge) { c.refunds[0].answers[1].Body = "" }, oneAnswer},
	{"a charge that never ended", func(_ *evidence, c, _ *charge) { c.Status = "pending" }, endsAsPlanned},
	{"a charge that ended otherwise", func(_ *evidence, c, _ *charge) { c.wanted = "card_declined" }, endsAsPlanned},
	{"a charge of another amount", func(_ *evidence, _, c *charge) { c.Amount++ }, endsAsPlanned},
	{"a refund of less than was requested", func(_ *evidence, c, _ *charge) { c.refunds[0].Amount-- }, endsAsPlanned},
	{"a refund that was to be refused", func(_ *evidence, c, _ *charge) { c.refunds[1].answers = thrice(http.StatusAccepted, "{}") }, endsAsPlanned},
	{"a merchant who acted twice", func(e *evidence, _, _ *charge) { e.books.Notifications[0].Effects = 2 }, notifiedOnce},
	{"a merchant who was notified under two ids", func(e *evidence, _, _ *charge) { e.notify("re_1", "refund.succeeded") }, notifiedOnce},
	{"a merchant who was notified of the contrary", func(e *evidence, _, _ *charge) { e.books.Notifications[0].Type = "charge.failed" }, notifiedOnce},
	{"a repeated webhook that added an event", func(e *evidence, _, _ *charge) { e.added++ }, webhooksAgain},
	{"streams that were not read", func(e *evidence, _, _ *charge) { e.events = 0 }, webhooksAgain},
	{"nine kills", func(e *evidence, _, _ *charge) { e.chaos.struck[killWorker]-- }, "chaos: workers killed while charges flow"},
	{"kills of idle workers alone", func(e *evidence, _, _ *charge) { e.chaos.inFlight = 0 }, "chaos: workers killed while charges flow"},
	{"no api killed", func(e *evidence, _, _ *charge) { e.chaos.struck[killAPI] = 0 }, "chaos: an api killed"},
	{"no restart of the database", func(e *evidence, _, _ *charge) { e.chaos.struck[restartDatabase] = 0 }, "chaos: database restarted at once"},
	{"a restart that is not the demo's to do", func(e *evidence, _, _ *charge) { e.chaos.struck[restartDatabase], e.chaos.notRun = 0, true }, ""},
	{"a provider without faults", func(e *evidence, _, _ *charge) { e.before.DuplicatesSuppressed = 1 }, "chaos: provider and shop asked again after faults"},
	{"a webhook that was not accepted", func(e *evidence, _, _ *charge) { e.repeated.Delivered-- }, "chaos: webhooks of the provider sent again"},
	{"a program that ended without a kill", func(e *evidence, _, _ *charge) { e.chaos.losses = []string{"worker-1"} }, "chaos: nothing ended that was not killed"},
}

func TestVerdict_findsEachDefect(t *testing.T) {
	t.Parallel()
	all, found := []string{}, []string{""}
	for _, check := range flawless().verdict("killed") {
		all = append(all, check.Name)
	}
	for _, defect := range defects {
		e := flawless()
		defect.plant(e, e.sent[0], e.sent[1])
		var red []string
		for _, check := range e.verdict("killed") {
			if check.Violated > 0 {
				red = append(red, check.Name)
			}
		}
		if strings.Join(red, "; ") != defect.found {
			t.Errorf("%s: found by %q, should be by %q", defect.name, red, defect.found)
		}
		found = append(found, defect.found)
	}
	slices.Sort(all)
	slices.Sort(found)
	testrun.Same(t, "checks that find a defect", all, slices.Compact(found)[1:])
}
