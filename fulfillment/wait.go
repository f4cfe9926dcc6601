package fulfillment

import (
	"math/rand/v2"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
)

// The bounds of the time between two reads of what the provider is processing. 10,000 such
// payments cost less than one call a second once each is read every longestLook.
const (
	firstLook   = time.Second
	longestLook = 4 * time.Hour
)

// patience is the wait for what the provider is processing, or for the customer: the next
// read is after as long again as the charge has had no event, and up to a quarter later. So
// the reads double their distance, and payments that began together are not read together. A
// deadline of the charge ends the wait, and the provider's event wakes the message before. A
// bank may take weeks, which is no outage, so the wait never makes a dead letter of the
// message.
//
// now is the time of the claim, and events are recorded in database time too.
func patience(now time.Time, s ledger.Stream, err error) error {
	pause := firstLook
	if since := s.Head().RecordedAt; !since.IsZero() { // zero: recorded after the claim
		pause = min(max(now.Sub(since), firstLook), longestLook)
	}
	pause += rand.N(pause / 4) //nolint:gosec // jitter
	for _, at := range s.Charge.Deadlines() {
		if at.After(now) {
			pause = min(pause, at.Sub(now))
		}
	}
	return &inbox.WaitError{AtLeast: pause, Patient: true, Err: err}
}
