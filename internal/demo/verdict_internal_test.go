package demo

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestVerdict(t *testing.T) {
	t.Parallel()

	t.Run("a flawless run breaks nothing, and every check has looked at something", func(t *testing.T) {
		t.Parallel()
		for _, check := range judge(flawless()) {
			if check.Violated != 0 {
				t.Errorf("%s: %v", check.Name, check.Examples)
			}
			if check.Checked == 0 {
				t.Errorf("%s has looked at nothing", check.Name)
			}
		}
	})

	// Each of these is a defect that the checks must find, and the checks that
	// find it.
	for _, defect := range []struct {
		name  string
		plant func(*evidence)
		found []string
	}{
		{
			"a request without an answer", func(e *evidence) { e.records[0].answers = e.records[0].answers[:2] },
			[]string{"outside: one answer per key, byte for byte"},
		},
		{
			"a replay with another byte", func(e *evidence) { e.records[0].answers[2].Body += " " },
			[]string{"outside: one answer per key, byte for byte"},
		},
		{
			"a replay with another Location", func(e *evidence) { e.records[0].answers[1].Location = "/v1/charges/ch_other" },
			[]string{"outside: one answer per key, byte for byte"},
		},
		{
			"a refused request", func(e *evidence) {
				for i := range e.records[0].answers {
					e.records[0].answers[i].Status = http.StatusBadRequest
				}
			},
			[]string{"outside: one answer per key, byte for byte"},
		},
		{
			"a reused key that was accepted", func(e *evidence) { reused(e).reuse[0].Status = http.StatusAccepted },
			[]string{"outside: a used key refuses another body"},
		},
		{
			"a reused key that was not tried", func(e *evidence) { reused(e).reuse = nil },
			[]string{"outside: a used key refuses another body"},
		},
		{
			"a charge that never ended", func(e *evidence) { ending(e, "card_declined").final = state{Status: "pending"} },
			[]string{
				"outside: every charge ends, and as it should",
				"outside: every stream gapless, with one ending",
				"outside: the merchant is told of each ending once",
			},
		},
		{
			"a declined charge that succeeded", func(e *evidence) { ending(e, "card_declined").final = state{Status: succeeded} },
			[]string{
				"outside: every charge ends, and as it should",
				"outside: a succeeded charge is captured once, in full",
				"outside: the merchant is told of each ending once",
			},
		},
		{
			"a charge that is not listed", func(e *evidence) { e.listed = e.listed[1:] },
			[]string{
				"outside: every charge is listed once, as it is shown",
				"outside: the list goes from the newest to the oldest",
			},
		},
		{
			"a charge that is listed on two pages", func(e *evidence) { e.listed = append(e.listed[:1:1], e.listed...) },
			[]string{"outside: every charge is listed once, as it is shown"},
		},
		{
			"a charge that is listed as it was", func(e *evidence) { e.records[0].shown = json.RawMessage(`{"id":"ch_0"}`) },
			[]string{"outside: every charge is listed once, as it is shown"},
		},
		{
			"an older charge before a newer one", func(e *evidence) { e.listed[3], e.listed[4] = e.listed[4], e.listed[3] },
			[]string{"outside: the list goes from the newest to the oldest"},
		},
		{
			"a gap in a stream", func(e *evidence) {
				r := &e.records[0]
				r.events[1].Version++
				r.later = r.events
			},
			[]string{"outside: every stream gapless, with one ending"},
		},
		{
			"two endings in a stream", func(e *evidence) {
				r := &e.records[0]
				r.events = append(r.events, event{len(r.events) + 1, "charge.failed.v1"})
				r.later = r.events
			},
			[]string{"outside: every stream gapless, with one ending"},
		},
		{
			"two notes of the same notification", func(e *evidence) {
				r := &e.records[0]
				r.events = append(r.events, event{len(r.events) + 1, "merchant.notified.v1"})
				r.later = r.events
			},
			[]string{"outside: every stream gapless, with one ending"},
		},
		{
			"a second capture", func(e *evidence) { e.books.Captures = append(e.books.Captures, e.books.Captures[0]) },
			[]string{"outside: at most one capture per charge", "outside: a succeeded charge is captured once, in full"},
		},
		{
			"a capture that is missing", func(e *evidence) { e.books.Captures = e.books.Captures[1:] },
			[]string{"outside: a succeeded charge is captured once, in full"},
		},
		{
			"a capture of another amount", func(e *evidence) { e.books.Captures[0].Amount++ },
			[]string{"outside: a succeeded charge is captured once, in full"},
		},
		{
			"a capture in another currency", func(e *evidence) { e.books.Captures[0].Currency = "chf" },
			[]string{"outside: a succeeded charge is captured once, in full"},
		},
		{
			"a capture of a failed charge", func(e *evidence) {
				e.books.Captures = append(e.books.Captures, capture{Reference: ending(e, "card_declined").id})
			},
			[]string{"outside: a failed charge is never captured"},
		},
		{
			"a capture for nobody", func(e *evidence) {
				e.books.Captures = append(e.books.Captures, capture{Reference: "ch_nobody"})
			},
			[]string{"outside: no capture without a charge"},
		},
		{
			"a merchant who acted twice", func(e *evidence) { e.books.Notifications[0].Effects = 2 },
			[]string{"outside: the merchant is told of each ending once"},
		},
		{
			"a merchant who was told twice, by two ids", func(e *evidence) {
				e.books.Notifications = append(e.books.Notifications, e.books.Notifications[0])
			},
			[]string{"outside: the merchant is told of each ending once"},
		},
		{
			"a merchant who was told the contrary", func(e *evidence) { e.books.Notifications[0].Type = "charge.refused" },
			[]string{"outside: the merchant is told of each ending once"},
		},
		{
			"a webhook that changed something when it came again", func(e *evidence) {
				r := &e.records[0]
				r.later = append(r.later, event{len(r.later) + 1, "payment.captured.v1"})
			},
			[]string{"outside: webhooks sent again change nothing"},
		},
		{
			"a webhook that was not taken", func(e *evidence) { e.repeated.Delivered-- },
			[]string{"chaos: webhooks of the provider sent again"},
		},
		{
			"a cancellation whose replay differs", func(e *evidence) { toBeCanceled(e).cancel[2].Body += " " },
			[]string{"outside: a cancellation has one answer, and the charge keeps it"},
		},
		{
			"a cancellation that was refused and happened", func(e *evidence) {
				r := toBeCanceled(e)
				r.final = state{ID: r.id, Status: failed, Failure: &failure{Code: canceled}}
				e.books.forget(r.id)
				e.books.Notifications = append(e.books.Notifications, notification{Reference: r.id, Type: "charge.failed", Deliveries: 1, Effects: 1})
			},
			[]string{"outside: a cancellation has one answer, and the charge keeps it"},
		},
		{
			"a cancellation that took the money", func(e *evidence) {
				r := toBeCanceled(e)
				r.final = state{ID: r.id, Status: failed, Failure: &failure{Code: canceled}}
				for i := range r.cancel {
					r.cancel[i] = accepted("/v1/charges/"+r.id, r.id)
				}
			},
			[]string{"outside: a failed charge is never captured", "outside: the merchant is told of each ending once"},
		},
		{
			"a refund whose replay differs", func(e *evidence) { refundThat(e, succeeded).answers[1].Body = "{}" },
			[]string{"outside: one answer per refund, byte for byte"},
		},
		{
			"a refusal whose replay differs", func(e *evidence) { refundThat(e, tooMuch).answers[1].Body += " " },
			[]string{"outside: one answer per refund, byte for byte"},
		},
		{
			"a refund that is less than was asked for", func(e *evidence) { refundThat(e, failed).amount-- },
			[]string{"outside: every refund ends, and as it should"},
		},
		{
			"a refund that did not end", func(e *evidence) { refundThat(e, failed).status = "pending" },
			[]string{"outside: every stream gapless, with one ending", "outside: every refund ends, and as it should"},
		},
		{
			"a refund paid twice", func(e *evidence) { e.books.Refunds = append(e.books.Refunds, e.books.Refunds[0]) },
			[]string{"outside: a refund is given back once if it succeeded, else never"},
		},
		{
			"a refund of another amount", func(e *evidence) { e.books.Refunds[0].Amount++ },
			[]string{"outside: a refund is given back once if it succeeded, else never"},
		},
		{
			"a failed refund that was paid", func(e *evidence) {
				e.books.Refunds = append(e.books.Refunds, refund{Reference: refundThat(e, failed).id})
			},
			[]string{"outside: a refund is given back once if it succeeded, else never"},
		},
		{
			"a refund for nobody", func(e *evidence) {
				e.books.Refunds = append(e.books.Refunds, refund{Reference: "re_nobody"})
			},
			[]string{"outside: no refund at the provider that nobody asked for"},
		},
		{
			"a merchant who was not told of a refund", func(e *evidence) { e.books.forgetTold(refundThat(e, succeeded).id) },
			[]string{"outside: the merchant is told of each ending once"},
		},
		{
			"a charge that says less was refunded", func(e *evidence) {
				find(e, func(r record) bool { return r.final.Status == partiallyRefunded }).final.AmountRefunded--
			},
			[]string{"outside: every charge says what was refunded"},
		},
		{
			"a refunded charge that says nothing of it", func(e *evidence) {
				find(e, func(r record) bool { return r.final.Status == refunded }).final.Status = succeeded
			},
			[]string{"outside: every charge says what was refunded"},
		},
		{
			"stock sold twice", func(e *evidence) { e.plan.Stock[poster]-- },
			[]string{"outside: scarce stock sells out and not twice"},
		},
		{
			"nine kills", func(e *evidence) { e.strikes.workerKills = 9 },
			[]string{"chaos: workers killed while charges flow"},
		},
		{
			"kills of idle workers alone", func(e *evidence) { e.strikes.killsUnderWay = 0 },
			[]string{"chaos: workers killed while charges flow"},
		},
		{
			"no api killed", func(e *evidence) { e.strikes.apiKills = 0 },
			[]string{"chaos: an api killed"},
		},
		{
			"no restart of the database", func(e *evidence) { e.strikes.restarted = 0 },
			[]string{"chaos: database restarted at once"},
		},
		{
			"a provider without faults", func(e *evidence) {
				e.books.DuplicatesSuppressed = e.before.DuplicatesSuppressed
				for i := range e.books.Notifications {
					e.books.Notifications[i].Deliveries = 1
				}
			},
			[]string{"chaos: provider and shop asked again after faults"},
		},
		{
			"a program that ended by itself", func(e *evidence) { e.losses = []string{"worker-1"} },
			[]string{"chaos: nothing ended that was not killed"},
		},
		{
			"nothing at all", func(e *evidence) { *e = evidence{plan: e.plan, tally: e.tally, strikes: strikes{blow: "killed"}} },
			[]string{
				"outside: one answer per key, byte for byte",
				"outside: one charge per key",
				"outside: a used key refuses another body",
				"outside: every charge ends, and as it should",
				"outside: every stream gapless, with one ending",
				"outside: at most one capture per charge",
				"outside: a succeeded charge is captured once, in full",
				"outside: a failed charge is never captured",
				"outside: no capture without a charge",
				"outside: the merchant is told of each ending once",
				"outside: webhooks sent again change nothing",
				"outside: every charge is listed once, as it is shown",
				"outside: the list goes from the newest to the oldest",
				"outside: a cancellation has one answer, and the charge keeps it",
				"outside: one answer per refund, byte for byte",
				"outside: every refund ends, and as it should",
				"outside: a refund is given back once if it succeeded, else never",
				"outside: every charge says what was refunded",
				"outside: scarce stock sells out and not twice",
				"chaos: workers killed while charges flow",
				"chaos: an api killed",
				"chaos: database restarted at once",
				"chaos: provider and shop asked again after faults",
				"chaos: webhooks of the provider sent again",
			},
		},
	} {
		t.Run(defect.name+" is found", func(t *testing.T) {
			t.Parallel()
			seen := flawless()
			defect.plant(&seen)
			var found []string
			for _, check := range judge(seen) {
				if check.Violated == 0 {
					continue
				}
				found = append(found, check.Name)
				if len(check.Examples) == 0 {
					t.Errorf("%s gives no example", check.Name)
				}
			}
			if diff := cmp.Diff(defect.found, found); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVerdictElsewhere(t *testing.T) {
	t.Parallel()

	t.Run("a restart that is not the demo's to do is not a violation", func(t *testing.T) {
		t.Parallel()
		seen := flawless()
		seen.strikes.restarted, seen.strikes.notRun = 0, true
		check := databaseRestarted(seen)
		if check.Violated != 0 || !check.notRun {
			t.Errorf("check: %+v", check)
		}
	})

	t.Run("captures from before the demo belong to somebody", func(t *testing.T) {
		t.Parallel()
		seen := flawless()
		old := capture{Reference: "ch_of_yesterday"}
		seen.before.Captures = append(seen.before.Captures, old)
		seen.books.Captures = append(seen.books.Captures, old)
		if check := nothingElseCaptured(seen); check.Violated != 0 {
			t.Errorf("check: %+v", check)
		}
	})
}
