package demo

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

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

// TestLab_endsWithTheDemo: the end of the demo waits for the end of the action in flight, and no other begins.
func TestLab_endsWithTheDemo(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{}, 2)
	sandbox := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { begun <- struct{}{} }))
	defer sandbox.Close()
	ctx, cancel := context.WithCancel(t.Context())
	d, done := &Demo{Say: func(string) {}}, make(chan error, 1)
	d.sandbox = harness.Sandbox(sandbox.URL)
	if _, err := d.Do("cut-provider"); !errors.Is(err, errNotKept) {
		t.Errorf("an action before the demo is kept ended with %v", err)
	}
	go d.keep(ctx, "")
	testrun.True(t, "the lab is open", func() bool {
		_, err := d.Do("no-such-action")
		return !errors.Is(err, errNotKept)
	})
	go func() {
		_, err := d.Do("cut-provider")
		done <- err
	}()
	<-begun
	cancel()
	d.keep(ctx, "")
	if len(begun) != 1 {
		t.Error("the faults stay")
	}
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the action ended with %v", err)
	}
	if _, err := d.Do("cut-provider"); !errors.Is(err, errNotKept) {
		t.Errorf("another action ended with %v", err)
	}
}

func thrice(status int, body string) []harness.Answer {
	a := harness.Answer{Status: status, Body: body}
	return []harness.Answer{a, a, a}
}

func accepted() []harness.Answer { return thrice(http.StatusAccepted, "{}") }

// flawless is a run of two charges: one is refunded in part, the other canceled.
func flawless() *evidence {
	refund := &request{path: "/refunds", amount: 40, wanted: succeeded, made: made{ID: "re_1", Status: succeeded, Amount: 40}, answers: accepted()}
	refusal := &request{amount: 61, wanted: tooMuch, answers: thrice(http.StatusUnprocessableEntity, `{"type":"`+tooMuch+`"}`)}
	refunded := &charge{follow: []*request{refund, refusal}}
	refunded.request = request{path: chargesPath, amount: 100, wanted: succeeded, made: made{ID: "ch_0", Status: "partially_refunded", Amount: 100}, answers: accepted()}
	stopped := &charge{follow: []*request{{wanted: canceled, made: made{ID: "ch_1", Status: failed}, answers: accepted()}}}
	stopped.request = request{path: chargesPath, amount: 100, wanted: canceled, made: made{ID: "ch_1", Status: failed, Amount: 100}, answers: accepted()}
	stopped.Failure.Code, stopped.follow[0].Failure.Code = canceled, canceled
	e := &evidence{
		sent:        []*charge{refunded, stopped},
		books:       harness.Books{DuplicatesSuppressed: 1},
		repeated:    harness.Repeated{Events: 2, Sent: 4, Delivered: 4},
		events:      8,
		eventsAgain: 8,
		busy:        1,
	}
	e.workers.Store(leastWorkerKills)
	e.apis.Store(1)
	e.restarted.Store(1)
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
	{"a cancellation whose replay differs", func(_ *evidence, _, c *charge) { c.follow[0].answers[2].Body += " " }, oneAnswer},
	{"a refund whose replay differs", func(_ *evidence, c, _ *charge) { c.follow[0].answers[1].Body = "" }, oneAnswer},
	{"a charge that never ended", func(_ *evidence, c, _ *charge) { c.Status = "pending" }, endsAsPlanned},
	{"a charge that ended otherwise", func(_ *evidence, c, _ *charge) { c.wanted = "card_declined" }, endsAsPlanned},
	{"a charge of another amount", func(_ *evidence, _, c *charge) { c.Amount++ }, endsAsPlanned},
	{"a refund of less than was requested", func(_ *evidence, c, _ *charge) { c.follow[0].Amount-- }, endsAsPlanned},
	{"a refund that was to be refused", func(_ *evidence, c, _ *charge) { c.follow[1].answers = accepted() }, endsAsPlanned},
	{"a merchant who acted twice", func(e *evidence, _, _ *charge) { e.books.Notifications[0].Effects = 2 }, notifiedOnce},
	{"a merchant who was notified under two ids", func(e *evidence, _, _ *charge) { e.notify("re_1", "refund.succeeded") }, notifiedOnce},
	{"a merchant who was notified of the contrary", func(e *evidence, _, _ *charge) { e.books.Notifications[0].Type = "charge.failed" }, notifiedOnce},
	{"a refund notified as a charge", func(e *evidence, _, _ *charge) { e.books.Notifications[2].Type = "charge.succeeded" }, notifiedOnce},
	{"a repeated webhook that added an event", func(e *evidence, _, _ *charge) { e.eventsAgain++ }, webhooksAgain},
	{"streams that were not read", func(e *evidence, _, _ *charge) { e.events, e.eventsAgain = 0, 0 }, webhooksAgain},
	{"kills of idle workers alone", func(e *evidence, _, _ *charge) { e.busy = 0 }, allFaults},
	{"nine kills", func(e *evidence, _, _ *charge) { e.workers.Add(-1) }, allFaults},
	{"no api killed", func(e *evidence, _, _ *charge) { e.apis.Store(0) }, allFaults},
	{"no restart of the database", func(e *evidence, _, _ *charge) { e.restarted.Store(0) }, allFaults},
	{"a restart that is not the demo's to do", func(e *evidence, _, _ *charge) { e.restarted.Store(0); e.noRestart = true }, ""},
	{"a provider without faults", func(e *evidence, _, _ *charge) { e.books.DuplicatesSuppressed = 0 }, allFaults},
	{"a webhook that was not accepted", func(e *evidence, _, _ *charge) { e.repeated.Delivered-- }, allFaults},
	{"a program that ended without a kill", func(e *evidence, _, _ *charge) { e.losses = []string{"worker-1"} }, allFaults},
}

func TestVerdict_findsEachDefect(t *testing.T) {
	t.Parallel()
	all, found := []string{}, []string{""}
	for _, check := range flawless().verdict() {
		all = append(all, check.Name)
	}
	for _, defect := range defects {
		e := flawless()
		defect.plant(e, e.sent[0], e.sent[1])
		var red []string
		for _, check := range e.verdict() {
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
