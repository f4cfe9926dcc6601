package fulfillment

import (
	"time"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// ReadFrom reads streams and stock from another server than the one that commits.
func (f *Fulfillment) ReadFrom(q postgres.Querier) {
	f.streams, f.stock = ledger.NewLoader(q, maxReadsInFlight), newStock(q)
}

// StepsAndSubscribers are the names of the lists.
func StepsAndSubscribers() (steps, subscribers []string) {
	f := &Fulfillment{}
	for _, s := range f.steps(time.Time{}) {
		steps = append(steps, s.name)
	}
	for _, s := range f.subscribers() {
		subscribers = append(subscribers, s.name)
	}
	return steps, subscribers
}

// ProcessingWait is the wait for what the provider is processing.
var ProcessingWait = processingWait
