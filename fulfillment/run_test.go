package fulfillment_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// A step or a subscriber that only one of the two packages lists would never run.
func TestSteps_matchTheDomain(t *testing.T) {
	t.Parallel()
	steps, subscribers := fulfillment.StepsAndSubscribers()
	if !slices.Equal(steps, domain.Steps()) || !slices.Equal(subscribers, domain.Subscribers()) {
		t.Errorf("fulfillment runs %v and %v, domain has %v and %v", steps, subscribers, domain.Steps(), domain.Subscribers())
	}
}

// TestOnStep: a step that found its work done is reported as such, and one that panics is reported too.
func TestOnStep(t *testing.T) {
	t.Parallel()
	m := newScripted(t, "accepted")
	var reported []string
	m.on.OnStep = func(ctx context.Context, step string) (context.Context, func(bool, error)) {
		return ctx, func(worked bool, err error) {
			reported = append(reported, fmt.Sprint(step, " ", worked, " ", err != nil))
		}
	}
	func() {
		defer func() { _ = recover() }()
		m.script.stream = nil // the provider panics
		m.play("", "create/0:cut", 1)
	}()
	m.script.stream = func() ledger.Stream { return m.stream }
	m.play("", "create/0:requires_confirmation confirm/3:succeeded", 1)
	m.append(requested(), refundedBy())
	m.play("stripe.refund.updated", "refunds:succeeded", 1)
	want := []string{"inventory true false", "payment true true", "payment true false", "payment true false", "refund false false"}
	testrun.Same(t, "the steps, whether they worked and failed", want, reported)
}

// TestWakeUp is about messages of which the handler believes the charge and the version alone.
func TestWakeUp(t *testing.T) {
	t.Parallel()
	const request, event = "charge.requested.v1", "stripe.refund.failed"
	for name, test := range map[string]struct{ message, payload, key, end string }{
		"a message that says nothing but the charge is a wake-up too": {request, `{}`, "ch_1", "done"},
		"a message about a charge that is not there waits":            {request, `{"id":"e","type":"t","charge_id":"ch_2","version":1}`, "ch_1", "waits"},
		"a message about an event that cannot be read yet waits":      {request, `{"id":"e","type":"t","charge_id":"ch_1","version":9}`, "ch_1", "waits"},
		"a request of no charge is an error":                          {request, `{}`, "ch_2", "load stream ch_2: no such charge"},
		"an event of a charge that is not ours is done":               {event, `{}`, "ch_2", "done"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newScripted(t, "captured")
			d := &inbox.Delivery{Message: inbox.Message{ID: "m", Type: test.message, OrderingKey: test.key, Payload: []byte(test.payload)}}
			if end := endOf(handlerOf(m.on, fulfillment.ChargeReceiver)(t.Context(), d)); end != test.end {
				t.Errorf("the delivery ends as %s, want %s", end, test.end)
			}
		})
	}
}

// TestOutcome_continuesTheTrace: of the metadata of the message before it, the message about an outcome has
// the trace and the correlation, and nothing else.
func TestOutcome_continuesTheTrace(t *testing.T) {
	t.Parallel()
	m := newScripted(t, "started")
	m.metadata = map[string]string{"correlation_id": "req_1", "traceparent": "t1", "tracestate": "private", "baggage": "private"}
	m.play("", "retrieve:succeeded", 1)
	want := map[string]string{"correlation_id": "req_1", "traceparent": "t1", "causation_id": m.stream.At(1).ID.String()}
	var got map[string]string
	if len(m.sent) != 1 || json.Unmarshal([]byte(m.sent[0].metadata), &got) != nil {
		t.Fatalf("it sends %v", m.sent)
	}
	testrun.Same(t, "metadata", want, got)
}

// TestForgedRequest is about requests that no api would have accepted, and that its database refuses. They are
// void: they change nothing, and keep nothing from its outcome.
func TestForgedRequest(t *testing.T) {
	t.Parallel()
	huge := domain.RefundRequested{RefundID: "re_9", Amount: 1e17, Notify: true}
	for name, test := range map[string]struct {
		after  string
		forged domain.Event
		calls  string
		want   string
	}{
		"a refund of 10^17 of a pending charge":             {"started", huge, "retrieve:succeeded", "captured"},
		"a refund of a pending charge that cannot be read":  {"started", domain.Unreadable{Name: "refund.requested.v1"}, "retrieve:succeeded", "captured"},
		"a refund of more than was captured":                {"captured", huge, "", ""},
		"a refund of a captured charge that cannot be read": {"captured", domain.Unreadable{Name: "refund.requested.v1"}, "", ""},
		"a cancellation after the outcome":                  {"captured", domain.ChargeCancelRequested{}, "", ""},
		"a second first event":                              {"captured", domain.ChargeRequested{Terms: domain.Terms{MerchantID: "acme", Money: domain.Money{Amount: 1, Currency: "EUR"}}}, "", ""},
		"a second cancellation":                             {"canceling accepted", domain.ChargeCancelRequested{}, "", "charge.failed(canceled)"},
	} {
		m := newScripted(t, test.after)
		m.append(test.forged)
		got := m.play("charge.requested.v1", test.calls, 1) + m.play("", "", 1) // the charge's own message and the forged one
		if got != test.want || len(m.stream.Charge.Refunds) > 0 {
			t.Errorf("%s: it records %s, want %s; refunds: %+v", name, got, test.want, m.stream.Charge.Refunds)
		}
		if test.after != "captured" {
			continue
		}
		m.append(requested())
		if got := m.play("", "refunds: refund/0:succeeded", 1); got != "refund.succeeded" {
			t.Errorf("%s: a refund after it records %s", name, got)
		}
	}
}

// TestForgedRequest_thatOpensACharge: no merchant has such a charge. Its message becomes a dead letter.
func TestForgedRequest_thatOpensACharge(t *testing.T) {
	t.Parallel()
	m := newScripted(t, "accepted")
	for _, forged := range []domain.Event{domain.Unreadable{Name: "charge.requested.v1"}, domain.ChargeCancelRequested{}} {
		m.stream = ledger.New("ch_1")
		m.append(forged)
		if err := m.deliver(""); endOf(err) != "dead" || !errors.Is(err, domain.ErrIllegal) {
			t.Errorf("the handler returned %v", err)
		}
	}
}
