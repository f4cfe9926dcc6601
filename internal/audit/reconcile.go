package audit

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math/big"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Intent is a payment intent in the provider's list.
type Intent struct {
	ID             string
	Reference      string // our charge, empty where the provider knows none
	Status         string // the provider's word
	Amount         int64  // minor units
	AmountReceived int64  // minor units
	Currency       string // upper case
}

// The provider's words on which a check depends.
const (
	statusSucceeded = "succeeded"
	statusCanceled  = "canceled"
	statusFailed    = "failed"
)

// Reconcile checks the provider's lists against the ledger. The provider's
// account must be payonce's own: money of anybody else's there is a violation.
// It holds the ledger's charges and refunds and the provider's intents and
// refunds in memory, a few hundred bytes each. An error of a list ends it.
//
// Traffic does not make a check fail. What must be at the provider is read from
// the ledger before the lists, and what must be in the ledger after them; a
// charge or a refund whose outcome comes in between is judged by what is certain
// of it. A refund that fails at the provider after it succeeded is found until
// the ledger has heard of it: the money is not where the books say.
func Reconcile(ctx context.Context, q postgres.Querier, intents iter.Seq2[Intent, error], refunds iter.Seq2[Refund, error]) ([]Check, error) {
	before, err := readCharges(ctx, q)
	if err != nil {
		return nil, err
	}
	refundsBefore, err := readRefunds(ctx, q)
	if err != nil {
		return nil, err
	}
	taken, err := listIntents(intents)
	if err != nil {
		return nil, err
	}
	given, err := listRefunds(refunds)
	if err != nil {
		return nil, err
	}
	after, err := readCharges(ctx, q)
	if err != nil {
		return nil, err
	}
	refundsAfter, err := readRefunds(ctx, q)
	if err != nil {
		return nil, err
	}
	return append([]Check{
		taken.takeOncePerCharge(after),
		taken.tookInFull(before),
		taken.tookNothingOfFailed(after),
		taken.canceledTheFailed(before),
		taken.tookForTheLedger(after),
		taken.sumsEqual(before),
	}, reconcileRefunds(given, refundsBefore, refundsAfter)...), nil
}

// charge is what the ledger says of one.
type charge struct {
	ID       string
	Amount   int64
	Currency string
	Outcome  string // succeeded, failed or empty
	Started  string // the intent of payment.started
	Captured string // the intent of payment.captured
	Booked   int64  // minor units that the books have at the provider
}

const selectCharges = `
with booked as (
  select stream_id,
         sum(amount)::bigint as amount
    from ledger_postings
   where debit like 'psp\_receivable:%'
     and credit like 'customer\_receivable:%'
   group by stream_id
)
select e.stream_id as id,
       coalesce(max((data ->> 'amount')::bigint) filter (where type like 'charge.requested.v%'), 0)       as amount,
       coalesce(max(data ->> 'currency')         filter (where type like 'charge.requested.v%'), '')      as currency,
       coalesce(max('succeeded')                 filter (where type like 'charge.succeeded.v%'),
                max('failed')                    filter (where type like 'charge.failed.v%'), '')         as outcome,
       coalesce(max(data ->> 'payment_intent')   filter (where type like 'payment.started.v%'), '')       as started,
       coalesce(max(data ->> 'payment_intent')   filter (where type like 'payment.captured.v%'), '')      as captured,
       coalesce(max(b.amount), 0)                                                                        as booked
  from ledger_events e
  left join booked b using (stream_id)
 group by e.stream_id
 order by e.stream_id`

// ledgerCharges are the charges in the order of their ids, and where each is.
type ledgerCharges struct {
	all  []charge
	byID map[string]int
}

func readCharges(ctx context.Context, q postgres.Querier) (ledgerCharges, error) {
	rows, err := q.Query(ctx, selectCharges)
	if err != nil {
		return ledgerCharges{}, fmt.Errorf("read the charges: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[charge])
	if err != nil {
		return ledgerCharges{}, fmt.Errorf("read the charges: %w", err)
	}
	charges := ledgerCharges{all: all, byID: make(map[string]int, len(all))}
	for i, c := range all {
		charges.byID[c.ID] = i
	}
	return charges, nil
}

func (c ledgerCharges) find(id string) (charge, bool) {
	i, known := c.byID[id]
	if !known {
		return charge{}, false
	}
	return c.all[i], true
}

// with are the charges that came to an outcome.
func (c ledgerCharges) with(outcome string) iter.Seq[charge] {
	return func(yield func(charge) bool) {
		for _, one := range c.all {
			if one.Outcome == outcome && !yield(one) {
				return
			}
		}
	}
}

// providerIntents are what the provider listed.
type providerIntents struct {
	byID  map[string]Intent
	taken map[string][]Intent // those that took money, by charge
}

func listIntents(intents iter.Seq2[Intent, error]) (providerIntents, error) {
	p := providerIntents{byID: map[string]Intent{}, taken: map[string][]Intent{}}
	for in, err := range intents {
		if err != nil {
			return p, fmt.Errorf("read the provider's payment intents: %w", err)
		}
		p.byID[in.ID] = in
	}
	for _, id := range slices.Sorted(maps.Keys(p.byID)) {
		if in := p.byID[id]; in.Status == statusSucceeded || in.AmountReceived > 0 {
			p.taken[in.Reference] = append(p.taken[in.Reference], in)
		}
	}
	return p, nil
}

func (p providerIntents) takeOncePerCharge(charges ledgerCharges) Check {
	check := newCheck("provider: one capture per charge")
	for _, c := range charges.all {
		complaint := ""
		if n := len(p.taken[c.ID]); n > 1 {
			complaint = fmt.Sprintf("%s: captured %d times, by %s and %s", c.ID, n, p.taken[c.ID][0].ID, p.taken[c.ID][1].ID)
		}
		check.see(complaint)
	}
	return check
}

func (p providerIntents) tookInFull(charges ledgerCharges) Check {
	check := newCheck("provider: a succeeded charge was captured in full")
	for c := range charges.with(statusSucceeded) {
		in, listed := p.byID[c.Captured]
		complaint := ""
		switch {
		case !listed:
			complaint = fmt.Sprintf("%s: the provider does not list %q", c.ID, c.Captured)
		case in.Reference != c.ID:
			complaint = fmt.Sprintf("%s: %s is about %q", c.ID, in.ID, in.Reference)
		case in.Status != statusSucceeded:
			complaint = fmt.Sprintf("%s: %s is %s", c.ID, in.ID, in.Status)
		case in.AmountReceived != c.Amount || in.Currency != c.Currency:
			complaint = fmt.Sprintf("%s: %s took %d %s of %d %s", c.ID, in.ID, in.AmountReceived, in.Currency, c.Amount, c.Currency)
		}
		check.see(complaint)
	}
	return check
}

func (p providerIntents) tookNothingOfFailed(charges ledgerCharges) Check {
	check := newCheck("provider: a failed charge was not captured")
	for c := range charges.with(statusFailed) {
		complaint := ""
		if taken := p.taken[c.ID]; len(taken) > 0 {
			complaint = fmt.Sprintf("%s: failed, and %s took %d %s", c.ID, taken[0].ID, taken[0].AmountReceived, taken[0].Currency)
		}
		check.see(complaint)
	}
	return check
}

// canceledTheFailed looks for the fence: an intent that is not canceled could
// still take money. Intents beside the recorded one are never confirmed.
func (p providerIntents) canceledTheFailed(charges ledgerCharges) Check {
	check := newCheck("provider: a failed charge's payment intent is canceled")
	for c := range charges.with(statusFailed) {
		if c.Started == "" {
			continue
		}
		in, listed := p.byID[c.Started]
		complaint := ""
		switch {
		case !listed:
			complaint = fmt.Sprintf("%s: the provider does not list %s", c.ID, c.Started)
		case in.Status != statusCanceled:
			complaint = fmt.Sprintf("%s: %s is %s", c.ID, in.ID, in.Status)
		}
		check.see(complaint)
	}
	return check
}

// tookForTheLedger begins at the money. A charge without outcome may have been
// captured a moment ago, but by no other intent than its own. What a failed
// charge's intents did is another check.
func (p providerIntents) tookForTheLedger(charges ledgerCharges) Check {
	check := newCheck("provider: every capture is a charge's in the ledger")
	for _, reference := range slices.Sorted(maps.Keys(p.taken)) {
		for _, in := range p.taken[reference] {
			c, known := charges.find(reference)
			complaint := ""
			switch {
			case !known:
				complaint = fmt.Sprintf("%s took %d %s for %q, which is no charge", in.ID, in.AmountReceived, in.Currency, reference)
			case c.Outcome == statusSucceeded && in.ID != c.Captured:
				complaint = fmt.Sprintf("%s took %d %s for %s, which was captured by %s", in.ID, in.AmountReceived, in.Currency, c.ID, c.Captured)
			case c.Outcome == "" && in.ID != c.Started:
				complaint = fmt.Sprintf("%s took %d %s for %s, whose payment intent is %q", in.ID, in.AmountReceived, in.Currency, c.ID, c.Started)
			}
			check.see(complaint)
		}
	}
	return check
}

// sumsEqual compares the books with the money, over the charges that had their
// outcome before the provider was asked.
func (p providerIntents) sumsEqual(charges ledgerCharges) Check {
	check := newCheck("provider: captured sums equal the books'")
	booked, taken := sums{}, sums{}
	for _, c := range charges.all {
		if c.Outcome == "" {
			continue
		}
		booked.add(c.Currency, c.Booked)
		taken.add(c.Currency, 0)
		for _, in := range p.taken[c.ID] {
			taken.add(in.Currency, in.AmountReceived)
			booked.add(in.Currency, 0)
		}
	}
	for _, currency := range slices.Sorted(maps.Keys(booked)) {
		complaint := ""
		if booked[currency].Cmp(taken[currency]) != 0 {
			complaint = fmt.Sprintf("%s: the provider took %s, the books say %s", currency, taken[currency], booked[currency])
		}
		check.see(complaint)
	}
	return check
}

// sums are amounts by currency, too many perhaps for 64 bits.
type sums map[string]*big.Int

func (s sums) add(currency string, amount int64) {
	if s[currency] == nil {
		s[currency] = new(big.Int)
	}
	s[currency].Add(s[currency], big.NewInt(amount))
}
