package fulfillment

import (
	"math/rand/v2"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
)

// The bounds of the time between two reads of what the provider is processing. 10,000 such
// payments cost less than one call a second once each is read every maxReadInterval.
const (
	minReadInterval = time.Second
	maxReadInterval = 4 * time.Hour
)

// processingWait is the wait for what the provider is processing, or for the customer. The interval to
// the next read equals the time since began, from 1 s to 4 h, plus up to 25 % jitter. So the intervals
// double, and payments that began together are not read together. A deadline of the charge ends the
// wait, and the provider's event wakes the message before. A bank may take weeks, which is no outage,
// so the wait never makes a dead letter of the message. now is the time of the claim.
func processingWait(now time.Time, s ledger.Stream, began ledger.StoredEvent, err error) error {
	pause := minReadInterval
	if since := began.RecordedAt; !since.IsZero() { // zero: recorded after the claim
		pause = min(max(now.Sub(since), minReadInterval), maxReadInterval)
	}
	pause += rand.N(pause / 4) //nolint:gosec // jitter
	for _, at := range s.Charge.Deadlines() {
		if at.After(now) {
			pause = min(pause, at.Sub(now))
		}
	}
	return &inbox.WaitError{AtLeast: pause, NoDeadline: true, Err: err}
}
