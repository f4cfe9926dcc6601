package fulfillment_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/internal/webhook"
	"github.com/payonce/payonce/ledger"
)

// row is a charge from a history over some deliveries, which bars separate, to what each of them records. In
// testdata it is its name, the history, and for each delivery the calls to the provider with their answers, and what
// is recorded: "captured" is a capture with its outcome, "declined" a decline that returns the stock, with the reason,
// "wakes" the refund that is sent a message.
// The line == above it names the table, and the type of the messages, see memory.deliver.
type row struct{ message, name, after, calls, want string }

// rows returns the rows of every table in testdata.
func rows(t *testing.T) (all []row) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	testrun.Must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		testrun.Must(t, err)
		table, message, next := "", "", ""
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSuffix(line, "\n")
			title, titled := strings.CutPrefix(line, "== ")
			after, begins := strings.CutPrefix(line, "  after ")
			switch {
			case line == "" || line[0] == '#':
			case titled:
				table, message, _ = strings.Cut(title, " ")
			case line[0] != ' ':
				all = append(all, row{message: message, name: table + "/" + line})
			case begins:
				all[len(all)-1].after, next = after, ""
			default:
				calls, want, _ := strings.Cut(line, "→")
				r := &all[len(all)-1]
				r.calls, r.want = r.calls+next+calls, r.want+next+strings.TrimSpace(want)
				next = " | "
			}
		}
	}
	return all
}

// TestDecides runs the rows of each table of testdata.
func TestDecides(t *testing.T) {
	t.Parallel()
	all := rows(t)
	if len(all) == 0 {
		t.Fatal("testdata has no table")
	}
	for _, r := range all {
		if r.after == "" {
			t.Errorf("%s has no charge", r.name)
		}
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			m := newScripted(t, r.after)
			if got := m.play(r.message, r.calls, strings.Count(r.want, "|")+1); got != r.want {
				t.Errorf("after %s %q records\n%s, want\n%s", r.after, r.calls, got, r.want)
			}
		})
	}
}

// TestNotify sends the webhook about each kind of event. Its bytes never change: a merchant may have stored them.
func TestNotify(t *testing.T) {
	t.Parallel()
	const charge = `{"id":"ch_1","order_id":"order 1","amount":1999,"amount_refunded":0,"currency":"EUR","status":"%s",` +
		`"steps":[{"name":"inventory","status":"skipped"},{"name":"payment","status":"%s"},{"name":"notification","status":"pending"}],` +
		`"failure":%s,"metadata":{"basket":"7"},"created_at":"2026-11-23T09:00:00Z"}`
	const refund = `{"id":"re_1","charge_id":"ch_1","amount":600,"currency":"EUR","status":"%s"}`
	for after, test := range map[string]struct{ kind, data string }{
		"captured": {"charge.succeeded", fmt.Sprintf(charge, "succeeded", "done", "null")},
		"declined": {"charge.failed", fmt.Sprintf(charge, "failed", "failed", `{"code":"card_declined","message":"no money","decline_code":"insufficient_funds"}`)},
		"refunded": {"refund.succeeded", fmt.Sprintf(refund, "succeeded")},
		"refused":  {"refund.failed", fmt.Sprintf(refund, "failed")},
		"reversed": {"refund.failed", fmt.Sprintf(refund, "failed")},
	} {
		t.Run(after, func(t *testing.T) {
			t.Parallel()
			m := newScripted(t, after)
			about := m.stream.Head()
			if got := m.play(about.Type, "webhook:taken", 2); got != "merchant.notified | " { // the second message is the same again
				t.Errorf("it records %s", got)
			}
			id := about.ID.String()
			body := fmt.Sprintf(`{"id":"%s","type":"%s","created_at":"2026-11-23T09:00:00Z","data":%s}`, id, test.kind, test.data)
			testrun.Same(t, "the webhooks", []webhook.Message{{URL: m.endpoint.URL, Secrets: m.endpoint.Secrets, ID: id, Body: []byte(body)}}, m.script.webhooks)
			notified := domain.MerchantNotified{EventID: id, Type: test.kind, Version: about.Version}
			testrun.Same(t, "recorded", domain.Event(notified), m.stream.Head().Event)
		})
	}
}

// TestRecorded_inFull is what events say beside their names. The reason of a failure is what the merchant sees.
func TestRecorded_inFull(t *testing.T) {
	t.Parallel()
	records := func(message, after, calls string, want domain.Event) {
		m := newScripted(t, after)
		m.play(message, calls, 1)
		testrun.Same(t, calls, want, m.stream.Head().Event)
	}
	fails := func(calls string, why domain.Failure) {
		records("", "reserved", calls, domain.ChargeFailed{Failure: why})
	}
	fails("create/0:rejected", domain.Failure{Code: domain.ProviderRefused, Message: "for people"})
	fails("create/0:declined", domain.Failure{Code: domain.CardDeclined, Message: "no money", DeclineCode: "insufficient_funds"})
	fails("create/0:other_parameters", domain.Failure{Code: domain.ProviderRefused, Message: "this key was used for another payment"})
	fails("create/0:requires_action cancel:canceled",
		domain.Failure{Code: domain.AuthenticationRequired, Message: "the payment needs the customer's authentication"})
	fails("create/0:requires_payment_method@attempted cancel:canceled",
		domain.Failure{Code: domain.ProviderRefused, Message: "the provider ended the payment without a reason"})
	fails("create/0:requires_payment_method@authentication cancel:canceled",
		domain.Failure{Code: domain.AuthenticationRequired, Message: "the card was declined", DeclineCode: "authentication_required"})
	records("", "interactive started", "retrieve:requires_action@page",
		domain.PaymentActionRequired{URL: "https://bank.example/3ds", ExpiresAt: nine.Add(time.Hour)})
	records("", "reserved", "create/0:500", domain.PaymentAttemptFailed{Stage: domain.StageCreate, StatusCode: 500, RequestID: "req_provider"})
	records("", "started", "retrieve:requires_confirmation confirm/3:500",
		domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500, RequestID: "req_provider"})
	records("", "refunding", "refunds: refund/0:500", domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500, RequestID: "req_provider"})
	records("", "refunding", "refunds: refund/0:succeeded", refundedBy())
	failed := domain.RefundFailed{RefundID: "re_1", Code: domain.ProviderRefused, Message: "for people"}
	records("", "refunding", "refunds: refund/0:rejected refunds:", failed)
	failed.ProviderRefund, failed.Message = "rp_1", "the refund failed at the provider: expired_card"
	records("", "refunding", "refunds:failed@expired", failed)
	records("stripe.refund.failed", "refunded", "refunds:canceled",
		domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 600, Message: "the refund was canceled at the provider"})
	records("stripe.refund.created", "captured", "refunds:succeeded",
		domain.RefundObserved{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600, Notify: true})
	records("stripe.charge.dispute.created", "captured", "disputes:open",
		domain.DisputeOpened{DisputeID: "du_1", Provider: domain.Provider, Amount: 1999, Reason: "fraudulent"})
	records("stripe.charge.dispute.created", "captured", "disputes:open@-1999",
		domain.DisputeWithdrawn{DisputeMoved: domain.DisputeMoved{DisputeID: "du_1", Transaction: "txn_0", Amount: 1999, Fee: 15}})
}

// TestProcessingWait_doublesItsReads is the arithmetic of the reads of a payment that a bank takes days for. Ten
// thousand of them cost less than one read a second, since each is read every four hours at least.
func TestProcessingWait_doublesItsReads(t *testing.T) {
	t.Parallel()
	const never = time.Duration(-1)
	for name, test := range map[string]struct {
		age, least, most time.Duration // since the event that began; never: this delivery has recorded it
		expires, acts    time.Duration // the deadlines, where they are not 0
	}{
		"at once":                              {0, time.Second, 5 * time.Second / 4, 0, 0},
		"after an event of this delivery":      {never, time.Second, 5 * time.Second / 4, 0, 0},
		"by a clock that went back":            {-time.Second, time.Second, 5 * time.Second / 4, 0, 0},
		"after a minute":                       {time.Minute, time.Minute, 75 * time.Second, 0, 0},
		"after three hours":                    {3 * time.Hour, 3 * time.Hour, 225 * time.Minute, 0, 0},
		"after three days, the reads a second": {72 * time.Hour, 4 * time.Hour, 5 * time.Hour, 0, 0},
		"until the deadline of the customer":   {40 * time.Second, 10 * time.Second, 10 * time.Second, time.Minute, 50 * time.Second},
		"until the deadline of the charge":     {55 * time.Second, 5 * time.Second, 5 * time.Second, time.Minute, 50 * time.Second},
	} {
		began, s := ledger.StoredEvent{RecordedAt: nine}, ledger.Stream{}
		if test.age == never {
			began.RecordedAt = time.Time{}
		}
		if test.expires > 0 {
			s.Charge = domain.Charge{Terms: domain.Terms{ExpiresAt: nine.Add(test.expires)}, Action: &domain.PaymentActionRequired{ExpiresAt: nine.Add(test.acts)}}
		}
		wait, ok := errors.AsType[*inbox.WaitError](fulfillment.ProcessingWait(nine.Add(test.age), s, began, nil))
		if !ok || !wait.NoDeadline || wait.AtLeast < test.least || wait.AtLeast > test.most || wait.AtLeast > inbox.LongestWait {
			t.Errorf("%s it waits %+v, want %s to %s", name, wait, test.least, test.most)
		}
	}
}
