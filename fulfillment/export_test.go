package fulfillment

import "github.com/payonce/payonce/internal/postgres"

// MostUrgent joins the errors of several refunds.
var MostUrgent = mostUrgent

// ReadFrom reads streams, endpoints and stock from another server than the one that
// commits.
func (f *Fulfillment) ReadFrom(q postgres.Querier) { f.reads = newReads(q) }

// StepsAndSubscribers are the names of the lists.
func StepsAndSubscribers() (steps, subscribers []string) {
	f := &Fulfillment{}
	for _, s := range f.steps() {
		steps = append(steps, s.name())
	}
	for _, s := range f.subscribers() {
		subscribers = append(subscribers, s.name)
	}
	return steps, subscribers
}
