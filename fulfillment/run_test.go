package fulfillment_test

import (
	"encoding/json"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// A step that only one of the two packages lists would never run.
func TestSteps_matchTheDomain(t *testing.T) {
	t.Parallel()
	testrun.Same(t, "steps", domain.Steps(), fulfillment.StepNames())
}

// TestWakeUp is about messages of which the handler believes the charge and the version alone.
func TestWakeUp(t *testing.T) {
	t.Parallel()
	const request, event, outcome = "charge.requested.v1", "stripe.refund.failed", "charge.succeeded.v1"
	for name, test := range map[string]struct{ message, payload, key, end string }{
		"a message that says nothing but the charge is a wake-up too": {request, `{}`, "ch_1", "done"},
		"a message about a charge that is not there waits":            {request, `{"id":"e","type":"t","charge_id":"ch_2","version":1}`, "ch_1", "waits"},
		"a message about an event that cannot be read yet waits":      {request, `{"id":"e","type":"t","charge_id":"ch_1","version":9}`, "ch_1", "waits"},
		"a request of no charge is an error":                          {request, `{}`, "ch_2", "load stream ch_2: no such charge"},
		"an event of a charge that is not ours is done":               {event, `{}`, "ch_2", "done"},
		"an outcome that names no event becomes a dead letter":        {outcome, `{}`, "ch_1", "dead"},
		"an outcome that names a capture becomes a dead letter":       {outcome, `{"id":"e","type":"t","charge_id":"ch_1","version":3}`, "ch_1", "dead"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newScripted(t, "captured")
			d := &inbox.Delivery{Message: inbox.Message{ID: "m", Type: test.message, OrderingKey: test.key, Payload: []byte(test.payload)}}
			if end := endOf(m.receive(t.Context(), d)); end != test.end {
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
