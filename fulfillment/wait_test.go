package fulfillment_test

import (
	"errors"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
)

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
