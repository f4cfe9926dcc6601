package fulfillment

import (
	"cmp"
	"context"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
)

// disputes records the disputes of one charge. It sends nothing: the provider's event wakes
// the charge, and the provider's list says what is the case.
type disputes struct {
	provider *stripe.Client
	unread   bool // the message asks for a read of the list
	waited   bool // and so may an event behind the message, if it waits for a refund of the bank's
	seen     []stripe.Dispute
}

// next is the read that a message asks for, and then a dispute of which something is not
// recorded.
//
// If we die here: no commit has ended the delivery; the next worker reads the list again.
// Test: TestDispute/a_read_that_was_interrupted_is_repeated.
func (r *disputes) next(c domain.Charge, stuck map[string]error) work {
	if list := "of " + c.PaymentIntent; (r.unread || r.waited && waitsForBank(stuck)) && c.StepStatus(domain.Payment) == domain.StepDone && stuck[list] == nil {
		return work{"dispute", list, r.list}
	}
	for _, seen := range r.seen {
		observed := observe(seen)
		if events, err := domain.Decide(c, observed); (err != nil || len(events) > 0) && stuck[seen.ID] == nil {
			return work{"dispute", seen.ID, func(context.Context, ledger.Stream) (decision, error) { return decision{command: observed}, nil }}
		}
	}
	return work{}
}

// list reads all disputes of the charge's intent.
func (r *disputes) list(ctx context.Context, s ledger.Stream) (decision, error) {
	all, err := collect(r.provider.Disputes(ctx, s.Charge.PaymentIntent))
	if err != nil {
		return callFailed(ctx, err, nil)
	}
	r.seen, r.unread, r.waited = all, false, false
	return decision{}, nil
}

// forget drops what was read, and asks for another read of it: another worker may have recorded
// what the provider has shown since, and a dispute's status is the last one.
func (r *disputes) forget() {
	r.unread, r.seen = r.unread || r.seen != nil, nil
}

func observe(d stripe.Dispute) domain.ObserveDispute {
	o := domain.ObserveDispute{
		ID: d.ID, Reason: d.Reason, Status: cmp.Or(domain.DisputeStatus(d.Closed), domain.DisputeOpen),
		Amount: domain.Money{Amount: d.Amount, Currency: domain.Currency(d.Currency)},
	}
	for _, m := range d.Moved {
		o.Moved = append(o.Moved, domain.DisputeMovement{
			Transaction: m.ID, Amount: m.Amount, Fee: m.Fee, Currency: domain.Currency(m.Currency),
		})
	}
	return o
}
