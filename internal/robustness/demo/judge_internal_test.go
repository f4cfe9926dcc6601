package demo

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

func thrice(status int, location, body string) []harness.Answer {
	a := harness.Answer{Status: status, Location: location, Body: body}
	return []harness.Answer{a, a, a}
}

// flawless is a run of one charge of each sort: refunded in part, canceled, and the last piece.
func flawless() *evidence {
	e := &evidence{
		plan:     plan{stock: map[string]int{scarceSKU: 1}},
		books:    harness.Books{DuplicatesSuppressed: 1},
		repeated: harness.Repeated{Events: 2, Sent: 4, Delivered: 4},
		chaos:    chaos{killed: "killed", workers: leastWorkerKills, inFlight: 1, apis: 1, restarted: time.Second, programs: 5},
	}
	for i, outcomes := range [][]string{{succeeded}, {canceled, succeeded}, {succeeded, "out_of_stock"}} {
		id := fmt.Sprintf("ch_%d", i)
		r := record{charge: charge{key: "key", amount: 100, currency: "EUR", outcomes: outcomes}, id: id, final: state{Status: succeeded, Amount: 100, Currency: "EUR"}}
		r.answers = thrice(http.StatusAccepted, "/v1/charges/"+id, "{}")
		r.events = []event{{Type: "charge.requested.v1"}}
		r.later = slices.Clone(r.events)
		e.records = append(e.records, r)
		e.notify(id, "charge.succeeded")
	}
	refunded, stopped := &e.records[0], &e.records[1]
	refunded.final.Status, refunded.final.AmountRefunded = "partially_refunded", 40
	refunded.refunds = []refundRecord{
		{refund: refund{amount: 40, outcomes: []string{succeeded}}, ID: "re_1", Amount: 40, Status: succeeded, answers: thrice(http.StatusAccepted, "", "{}")},
		{refund: refund{amount: 61, outcomes: []string{tooMuch}}, answers: thrice(http.StatusUnprocessableEntity, "", `{"type":"`+tooMuch+`"}`)},
	}
	e.notify("re_1", "refund.succeeded")
	stopped.charge.cancel, stopped.charge.reuse = true, true
	stopped.final.Status, stopped.final.Failure.Code = failed, canceled
	stopped.cancel = thrice(http.StatusAccepted, "/v1/charges/ch_1", "{}")
	stopped.reuse = thrice(http.StatusUnprocessableEntity, "", `{"type":"/problems/idempotency-key-reused"}`)[:1]
	e.books.Notifications[1].Type = "charge.failed"
	return e
}

func (e *evidence) notify(reference, kind string) {
	e.books.Notifications = append(e.books.Notifications, harness.Notification{Reference: reference, Type: kind, Deliveries: 1, Effects: 1})
}

// defects are what a run can show, each with the checks that must find it.
var defects = []struct {
	name  string
	plant func(*evidence)
	found []string
}{
	{"nothing", func(*evidence) {}, nil},
	{"a request without an answer", func(e *evidence) { e.records[0].answers = e.records[0].answers[:2] }, []string{oneAnswer}},
	{"a replay with another byte", func(e *evidence) { e.records[0].answers[2].Body += " " }, []string{oneAnswer}},
	{"a refused request", func(e *evidence) { e.records[0].answers = thrice(http.StatusBadRequest, "", "") }, []string{oneAnswer}},
	{"a reused key that was accepted", func(e *evidence) { e.records[1].reuse[0].Status = http.StatusAccepted }, []string{reusedKey}},
	{"a reused key that was not tried", func(e *evidence) { e.records[1].reuse = nil }, []string{reusedKey}},
	{"a charge that never ended", func(e *evidence) { e.records[2].final.Status = "pending" }, []string{endsAsPlanned, scarceStockSold}},
	{"a charge that ended otherwise", func(e *evidence) { e.records[0].charge.outcomes = []string{"card_declined"} }, []string{endsAsPlanned}},
	{"a charge of another amount", func(e *evidence) { e.records[1].final.Amount++ }, []string{endsAsPlanned}},
	{"a merchant who acted twice", func(e *evidence) { e.books.Notifications[0].Effects = 2 }, []string{notifiedOnce}},
	{"a merchant who was notified under two ids", func(e *evidence) { e.notify("re_1", "refund.succeeded") }, []string{notifiedOnce}},
	{"a merchant who was notified of the contrary", func(e *evidence) { e.books.Notifications[0].Type = "charge.failed" }, []string{notifiedOnce}},
	{"a repeated webhook that added an event", func(e *evidence) { e.records[0].later = append(e.records[0].later, event{}) }, []string{webhooksAgain}},
	{"a stream that was not read", func(e *evidence) { e.records[0].events, e.records[0].later = nil, nil }, []string{webhooksAgain}},
	{"a cancellation whose replay differs", func(e *evidence) { e.records[1].cancel[2].Body += " " }, []string{cancellation}},
	{"a cancellation that was refused and happened", func(e *evidence) {
		e.records[1].cancel = thrice(http.StatusConflict, "", `{"type":"`+notCaptured+`"}`)
	}, []string{cancellation}},
	{"a refund whose replay differs", func(e *evidence) { e.records[0].refunds[0].answers[1].Body = "" }, []string{refundAnswer}},
	{"a refund of less than was requested", func(e *evidence) { e.records[0].refunds[0].Amount-- }, []string{refundEnds, showsRefunded}},
	{"a refund that was to be refused", func(e *evidence) { e.records[0].refunds[1].answers = thrice(http.StatusAccepted, "", "{}") }, []string{refundEnds}},
	{"a refunded charge that does not show it", func(e *evidence) { e.records[0].final.Status = succeeded }, []string{showsRefunded}},
	{"a piece that no charge got", func(e *evidence) { e.plan.stock[scarceSKU] = 0 }, []string{scarceStockSold}},
	{"nine kills", func(e *evidence) { e.chaos.workers = 9 }, []string{"chaos: workers killed while charges flow"}},
	{"kills of idle workers alone", func(e *evidence) { e.chaos.inFlight = 0 }, []string{"chaos: workers killed while charges flow"}},
	{"no api killed", func(e *evidence) { e.chaos.apis = 0 }, []string{"chaos: an api killed"}},
	{"no restart of the database", func(e *evidence) { e.chaos.restarted = 0 }, []string{"chaos: database restarted at once"}},
	{"a restart that is not the demo's to do", func(e *evidence) { e.chaos.restarted, e.chaos.notRun = 0, true }, nil},
	{"a provider without faults", func(e *evidence) { e.before.DuplicatesSuppressed = 1 }, []string{"chaos: provider and shop asked again after faults"}},
	{"a webhook that was not accepted", func(e *evidence) { e.repeated.Delivered-- }, []string{"chaos: webhooks of the provider sent again"}},
	{"a program that ended without a kill", func(e *evidence) { e.chaos.losses = []string{"worker-1"} }, []string{"chaos: nothing ended that was not killed"}},
}

func TestVerdict_findsEachDefect(t *testing.T) {
	t.Parallel()
	var checks, found []string
	for _, check := range flawless().verdict() {
		checks = append(checks, check.Name)
	}
	for _, defect := range defects {
		found = append(found, defect.found...)
		t.Run(defect.name, func(t *testing.T) {
			t.Parallel()
			e := flawless()
			defect.plant(e)
			var red []string
			for _, check := range e.verdict() {
				if check.Violated > 0 {
					red = append(red, check.Name)
				}
			}
			testrun.Same(t, "found", defect.found, red)
		})
	}
	slices.Sort(checks)
	slices.Sort(found)
	testrun.Same(t, "checks that find a defect", checks, slices.Compact(found))
}
