package validate

import (
	"net/http"
	"slices"
	"testing"

	"github.com/payonce/payonce/internal/robustness/traffic"
	"github.com/payonce/payonce/internal/testrun"
)

func TestJudge_findsNothingInAFlawlessRun(t *testing.T) {
	t.Parallel()
	for _, check := range Judge(*flawless()) {
		if check.Violated != 0 || check.Checked == 0 {
			t.Errorf("%s: checked %d: %v", check.Name, check.Checked, check.Examples)
		}
	}
}

// defects are what a run can show, each with the checks that must find it.
var defects = []struct {
	name  string
	plant func(*Evidence)
	found []string
}{
	{"a request without an answer", func(e *Evidence) { e.Records[0].Answers = e.Records[0].Answers[:2] }, []string{oneAnswer}},
	{"a replay with another byte", func(e *Evidence) { e.Records[0].Answers[2].Body += " " }, []string{oneAnswer}},
	{"a refused request", func(e *Evidence) {
		e.Records[0].Answers = thrice(refused(http.StatusBadRequest, "/problems/malformed"))
	}, []string{oneAnswer}},
	{"a reused key that was accepted", func(e *Evidence) { reused(e).Reuse[0].Status = http.StatusAccepted }, []string{reusedKey}},
	{"a reused key that was not tried", func(e *Evidence) { reused(e).Reuse = nil }, []string{reusedKey}},
	{
		"a charge that never ended", func(e *Evidence) { e.ended("card_declined").Final = traffic.State{Status: "pending"} },
		[]string{endsAsPlanned, streams, notifiedOnce},
	},
	{
		"a declined charge that succeeded", func(e *Evidence) { e.ended("card_declined").Final = traffic.State{Status: traffic.Succeeded} },
		[]string{endsAsPlanned, capturedInFull, notifiedOnce},
	},
	{
		"two keys that led to one charge", func(e *Evidence) { e.Records[1].ID = e.Records[0].ID },
		[]string{oneCharge, capturedInFull, onlyCharges, listedOnce},
	},
	{"a charge that is not listed", func(e *Evidence) { e.Listed = e.Listed[1:] }, []string{listedOnce, newestFirst}},
	{"a charge that is listed on two pages", func(e *Evidence) { e.Listed = append(e.Listed[:1:1], e.Listed...) }, []string{listedOnce}},
	{"a charge that is listed as it was", func(e *Evidence) { e.Records[0].Shown.Body = "{}" }, []string{listedOnce}},
	{"an older charge before a newer one", func(e *Evidence) { e.Listed[3], e.Listed[4] = e.Listed[4], e.Listed[3] }, []string{newestFirst}},
	{"a gap in a stream", func(e *Evidence) { e.Records[0].Events[1].Version++; e.Records[0].Later = e.Records[0].Events }, []string{streams}},
	{"two endings in a stream", func(e *Evidence) { also(&e.Records[0], "charge.failed.v1") }, []string{streams}},
	{"two notes of the same notification", func(e *Evidence) { also(&e.Records[0], "merchant.notified.v1") }, []string{streams}},
	{"a dispute twice in a stream", func(e *Evidence) {
		also(e.find(func(r traffic.Record) bool { return r.Charge.Disputed != "" }), "charge.dispute_closed.v2")
	}, []string{showsDisputes}},
	{
		"a second capture", func(e *Evidence) { e.Books.Captures = append(e.Books.Captures, e.Books.Captures[0]) },
		[]string{oneCapture, capturedInFull},
	},
	{"a capture that is missing", func(e *Evidence) { e.Books.Captures = e.Books.Captures[1:] }, []string{capturedInFull}},
	{"a capture of another amount", func(e *Evidence) { e.Books.Captures[0].Amount++ }, []string{capturedInFull}},
	{"a capture in another currency", func(e *Evidence) { e.Books.Captures[0].Currency = "chf" }, []string{capturedInFull}},
	{"a capture of a failed charge", func(e *Evidence) {
		e.Books.Captures = append(e.Books.Captures, traffic.Money{Reference: e.ended("card_declined").ID})
	}, []string{neverCaptured}},
	{"a capture for no charge", func(e *Evidence) {
		e.Books.Captures = append(e.Books.Captures, traffic.Money{Reference: "ch_none"})
	}, []string{onlyCharges}},
	{"a merchant who acted twice", func(e *Evidence) { e.Books.Notifications[0].Effects = 2 }, []string{notifiedOnce}},
	{"a merchant who was notified under two ids", func(e *Evidence) {
		e.Books.Notifications = append(e.Books.Notifications, e.Books.Notifications[0])
	}, []string{notifiedOnce}},
	{"a merchant who was notified of the contrary", func(e *Evidence) { e.Books.Notifications[0].Type = "charge.refused" }, []string{notifiedOnce}},
	{"a repeated webhook that changed something", func(e *Evidence) {
		e.Records[0].Later = append(e.Records[0].Later, traffic.Event{Version: len(e.Records[0].Later) + 1, Type: "payment.captured.v1"})
	}, []string{webhooksAgain}},
	{"a webhook that was not accepted", func(e *Evidence) { e.Repeated.Delivered-- }, []string{"chaos: webhooks of the provider sent again"}},
	{"a cancellation whose replay differs", func(e *Evidence) { toBeCanceled(e).Cancel[2].Body += " " }, []string{cancellation}},
	{"a cancellation that was refused and happened", func(e *Evidence) {
		r := cancel(e)
		e.Books.Captures = slices.DeleteFunc(e.Books.Captures, func(c traffic.Money) bool { return c.Reference == r.ID })
		e.forgetNotified(r.ID)
		e.notify(r.ID, "charge.failed", 1)
	}, []string{cancellation}},
	{
		"a cancellation that took the money", func(e *Evidence) { r := cancel(e); r.Cancel = thrice(accepted("/v1/charges/"+r.ID, r.ID)) },
		[]string{neverCaptured, notifiedOnce},
	},
	{"a refund whose replay differs", func(e *Evidence) { e.refundThat(traffic.Succeeded).Answers[1].Body = "{}" }, []string{refundAnswer}},
	{"a refund of less than was requested", func(e *Evidence) { e.refundThat(traffic.Failed).Amount-- }, []string{refundEnds}},
	{"a refund that did not end", func(e *Evidence) { e.refundThat(traffic.Failed).Status = "pending" }, []string{streams, refundEnds}},
	{"a refund paid twice", func(e *Evidence) { e.Books.Refunds = append(e.Books.Refunds, e.Books.Refunds[0]) }, []string{paidOnce}},
	{"a refund of another amount", func(e *Evidence) { e.Books.Refunds[0].Amount++ }, []string{paidOnce}},
	{"a failed refund that was paid", func(e *Evidence) {
		e.Books.Refunds = append(e.Books.Refunds, traffic.Money{Reference: e.refundThat(traffic.Failed).ID})
	}, []string{paidOnce}},
	{"a refund for no request", func(e *Evidence) {
		e.Books.Refunds = append(e.Books.Refunds, traffic.Money{Reference: "re_none"})
	}, []string{onlyRefunds}},
	{"a merchant who was not notified of a refund", func(e *Evidence) { e.forgetNotified(e.refundThat(traffic.Succeeded).ID) }, []string{notifiedOnce}},
	{"a charge that shows too little refunded", func(e *Evidence) { withStatus(e, traffic.PartiallyRefunded).Final.AmountRefunded-- }, []string{showsRefunded}},
	{"a refunded charge that does not show it", func(e *Evidence) { withStatus(e, traffic.Refunded).Final.Status = traffic.Succeeded }, []string{showsRefunded}},
	{"stock sold twice", func(e *Evidence) { e.Plan.Stock[traffic.ScarceSKU]-- }, []string{scarceStockSold}},
	{"nine kills", func(e *Evidence) { e.Chaos.WorkerKills = 9 }, []string{"chaos: workers killed while charges flow"}},
	{"kills of idle workers alone", func(e *Evidence) { e.Chaos.KillsInFlight = 0 }, []string{"chaos: workers killed while charges flow"}},
	{"no api killed", func(e *Evidence) { e.Chaos.APIKills = 0 }, []string{"chaos: an api killed"}},
	{"no restart of the database", func(e *Evidence) { e.Chaos.Restarted = 0 }, []string{"chaos: database restarted at once"}},
	{"a provider without faults", func(e *Evidence) {
		e.Books.DuplicatesSuppressed = e.Before.DuplicatesSuppressed
		for i := range e.Books.Notifications {
			e.Books.Notifications[i].Deliveries = 1
		}
	}, []string{"chaos: provider and shop asked again after faults"}},
	{"a program that ended without a kill", func(e *Evidence) { e.Chaos.Losses = []string{"worker-1"} }, []string{"chaos: nothing ended that was not killed"}},
}

func reused(e *Evidence) *traffic.Record {
	return e.find(func(r traffic.Record) bool { return len(r.Reuse) > 0 })
}

func toBeCanceled(e *Evidence) *traffic.Record {
	return e.find(func(r traffic.Record) bool { return r.Charge.Cancel })
}

func withStatus(e *Evidence, status string) *traffic.Record {
	return e.find(func(r traffic.Record) bool { return r.Final.Status == status })
}

// cancel makes a charge canceled that was to be.
func cancel(e *Evidence) *traffic.Record {
	r := toBeCanceled(e)
	r.Final = traffic.State{ID: r.ID, Status: traffic.Failed, Failure: &traffic.Failure{Code: traffic.Canceled}}
	return r
}

func also(r *traffic.Record, kind string) {
	r.Events = append(r.Events, traffic.Event{Version: len(r.Events) + 1, Type: kind})
	r.Later = r.Events
}

func TestJudge_findsEachDefect(t *testing.T) {
	t.Parallel()
	var checks, found []string
	for _, check := range Judge(*flawless()) {
		checks = append(checks, check.Name)
	}
	for _, defect := range defects {
		found = append(found, defect.found...)
	}
	slices.Sort(checks)
	slices.Sort(found)
	testrun.Same(t, "checks that find a defect", checks, slices.Compact(found))
	for _, defect := range defects {
		t.Run(defect.name, func(t *testing.T) {
			t.Parallel()
			e := flawless()
			defect.plant(e)
			testrun.Same(t, "found", defect.found, violated(t, *e))
		})
	}
}

func violated(t *testing.T, e Evidence) (found []string) {
	t.Helper()
	for _, check := range Judge(e) {
		if check.Violated > 0 {
			found = append(found, check.Name)
			if len(check.Examples) == 0 {
				t.Errorf("%s gives no example", check.Name)
			}
		}
	}
	return found
}

// TestJudge_failsWhereNothingWasChecked: a run without evidence violates every check
// but those that can have no case.
func TestJudge_failsWhereNothingWasChecked(t *testing.T) {
	t.Parallel()
	e := Evidence{Plan: flawless().Plan, Chaos: Chaos{Killed: "killed"}}
	idle := map[string]bool{
		onlyRefunds: true,
		"chaos: nothing ended that was not killed": true,
	}
	for _, check := range Judge(e) {
		if (check.Violated == 0) != idle[check.Name] {
			t.Errorf("%s: violated %d", check.Name, check.Violated)
		}
	}
}

func TestJudge_onServicesOfOthers(t *testing.T) {
	t.Parallel()
	e := flawless()
	e.Chaos.Restarted, e.Chaos.NotRun = 0, true // the restart is not the demo's to do
	earlier := traffic.Money{Reference: "ch_earlier"}
	e.Before.Captures, e.Books.Captures = append(e.Before.Captures, earlier), append(e.Books.Captures, earlier)
	e.Before.Refunds, e.Books.Refunds = []traffic.Money{{Reference: "re_earlier"}}, append(e.Books.Refunds, traffic.Money{Reference: "re_earlier"})
	if found := violated(t, *e); found != nil {
		t.Errorf("violated: %q", found)
	}
}

func TestMain(m *testing.M) { testrun.Main(m) }

func TestAudit_With(t *testing.T) {
	t.Parallel()
	good, bad := Check{Name: "good", Checked: 1}, Check{Name: "bad", Checked: 1, Violated: 1}
	for name, c := range map[string]struct {
		audit   Audit
		further Check
		ok      bool
	}{
		"all in order":              {Audit{OK: true, Checks: []Check{good}}, good, true},
		"a further one is violated": {Audit{OK: true, Checks: []Check{good}}, bad, false},
		"its own is violated":       {Audit{OK: true, Checks: []Check{bad}}, good, false},
		"it reports not ok":         {Audit{OK: false, Checks: []Check{good}}, good, false},
	} {
		if got := c.audit.With(c.further); got.OK != c.ok || len(got.Checks) != 2 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestReadAudit_refusesWhatIsNoAudit(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "every promise held", `{"ok":true,"checks":[]}`} {
		if audit, err := ReadAudit([]byte(text)); err == nil {
			t.Errorf("%q is read as %+v", text, audit)
		}
	}
}
