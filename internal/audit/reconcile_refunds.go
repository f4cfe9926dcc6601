package audit

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Refund is a refund in the provider's list.
type Refund struct {
	ID            string
	Reference     string // our refund, empty where the provider knows none
	PaymentIntent string
	Status        string // the provider's word
	Amount        int64  // minor units
	Currency      string // upper case
}

// gone tells whether the refund has given money back, or may yet.
func (r Refund) gone() bool { return r.Status != statusFailed && r.Status != statusCanceled }

// refund is what the ledger says of one.
type refund struct {
	ID       string
	ChargeID string
	Intent   string // of the charge's capture
	Amount   int64
	Currency string
	Outcome  string // succeeded, failed (also after it had succeeded) or empty
	Provider string // the provider's refund, empty where none is known
	Booked   int64  // minor units that the books have taken from the provider
}

const selectRefunds = `
with booked as (
  select stream_id,
         version,
         sum(case when credit like 'psp\_receivable:%' then amount else -amount end)::bigint as amount
    from ledger_postings
   where credit like 'psp\_receivable:%'
      or debit like 'psp\_receivable:%'
   group by stream_id, version
), charges as (
  select stream_id,
         coalesce(max(data ->> 'currency')       filter (where type like 'charge.requested.v%'), '') as currency,
         coalesce(max(data ->> 'payment_intent') filter (where type like 'payment.captured.v%'), '') as intent
    from ledger_events
   group by stream_id
)
select coalesce(e.data ->> 'refund_id', '') as id,
       e.stream_id as charge_id,
       c.intent,
       coalesce(max((e.data ->> 'amount')::bigint) filter (where e.type like 'refund.requested.v%'), 0)  as amount,
       c.currency,
       coalesce(max('failed')    filter (where e.type like 'refund.reversed.v%' or e.type like 'refund.failed.v%'),
                max('succeeded') filter (where e.type like 'refund.succeeded.v%'), '')                  as outcome,
       coalesce(max(e.data ->> 'provider_refund'), '')                                                  as provider,
       coalesce(sum(b.amount), 0)::bigint                                                               as booked
  from ledger_events e
  join charges c using (stream_id)
  left join booked b
    on b.stream_id = e.stream_id
   and b.version = e.version
 where e.type like 'refund.%'
 group by e.stream_id, e.data ->> 'refund_id', c.intent, c.currency
 order by e.data ->> 'refund_id'`

// ledgerRefunds are the refunds by their ids.
type ledgerRefunds map[string]refund

func readRefunds(ctx context.Context, q postgres.Querier) (ledgerRefunds, error) {
	rows, err := q.Query(ctx, selectRefunds)
	if err != nil {
		return nil, fmt.Errorf("read the refunds: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[refund])
	if err != nil {
		return nil, fmt.Errorf("read the refunds: %w", err)
	}
	refunds := make(ledgerRefunds, len(all))
	for _, r := range all {
		refunds[r.ID] = r
	}
	return refunds, nil
}

// settled are the refunds, in the order of their ids, that had their outcome
// before the provider was asked and have no other since.
func (before ledgerRefunds) settled(after ledgerRefunds, outcomes ...string) iter.Seq[refund] {
	return func(yield func(refund) bool) {
		for _, id := range slices.Sorted(maps.Keys(before)) {
			r := before[id]
			if slices.Contains(outcomes, r.Outcome) && after[id].Outcome == r.Outcome && !yield(r) {
				return
			}
		}
	}
}

// providerRefunds are what the provider listed and has not taken back, by our
// refund.
type providerRefunds map[string][]Refund

func listRefunds(refunds iter.Seq2[Refund, error]) (providerRefunds, error) {
	byID := map[string]Refund{}
	for r, err := range refunds {
		if err != nil {
			return nil, fmt.Errorf("read the provider's refunds: %w", err)
		}
		byID[r.ID] = r
	}
	p := providerRefunds{}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		if r := byID[id]; r.gone() {
			p[r.Reference] = append(p[r.Reference], r)
		}
	}
	return p, nil
}

// reconcileRefunds compares the provider's refunds with what the ledger said
// before they were listed and after.
func reconcileRefunds(p providerRefunds, before, after ledgerRefunds) []Check {
	return []Check{
		p.giveBackOnce(after),
		p.gaveBackInFull(before, after),
		p.gaveNothingOfFailed(before, after),
		p.gaveForTheLedger(after),
		p.sumsEqual(before, after),
	}
}

func (p providerRefunds) giveBackOnce(refunds ledgerRefunds) Check {
	check := newCheck("provider: one refund per refund")
	for _, id := range slices.Sorted(maps.Keys(refunds)) {
		complaint := ""
		if given := p[id]; len(given) > 1 {
			complaint = fmt.Sprintf("%s: given back %d times, by %s and %s", id, len(given), given[0].ID, given[1].ID)
		}
		check.see(complaint)
	}
	return check
}

func (p providerRefunds) gaveBackInFull(before, after ledgerRefunds) Check {
	check := newCheck("provider: a succeeded refund was given back in full")
	for r := range before.settled(after, statusSucceeded) {
		i := slices.IndexFunc(p[r.ID], func(given Refund) bool { return given.ID == r.Provider })
		if i < 0 {
			check.see(fmt.Sprintf("%s: the provider does not list %q for it", r.ID, r.Provider))
			continue
		}
		complaint := ""
		switch given := p[r.ID][i]; {
		case given.Status != statusSucceeded:
			complaint = fmt.Sprintf("%s: %s is %s", r.ID, given.ID, given.Status)
		case given.PaymentIntent != r.Intent:
			complaint = fmt.Sprintf("%s: %s gives back money of %s, not of %s", r.ID, given.ID, given.PaymentIntent, r.Intent)
		case given.Amount != r.Amount || given.Currency != r.Currency:
			complaint = fmt.Sprintf("%s: %s gave back %d %s of %d %s", r.ID, given.ID, given.Amount, given.Currency, r.Amount, r.Currency)
		}
		check.see(complaint)
	}
	return check
}

func (p providerRefunds) gaveNothingOfFailed(before, after ledgerRefunds) Check {
	check := newCheck("provider: a failed refund gave nothing back")
	for r := range before.settled(after, statusFailed) {
		complaint := ""
		if given := p[r.ID]; len(given) > 0 {
			complaint = fmt.Sprintf("%s: failed, and %s gives back %d %s", r.ID, given[0].ID, given[0].Amount, given[0].Currency)
		}
		check.see(complaint)
	}
	return check
}

// gaveForTheLedger begins at the money. A pending refund may have been given
// back a moment ago, but of no other capture and in no other amount. What was
// given for a failed one is another check.
func (p providerRefunds) gaveForTheLedger(refunds ledgerRefunds) Check {
	check := newCheck("provider: every refund is one of the ledger's")
	for _, reference := range slices.Sorted(maps.Keys(p)) {
		for _, given := range p[reference] {
			r, known := refunds[reference]
			complaint := ""
			switch {
			case !known:
				complaint = fmt.Sprintf("%s gives back %d %s of %s for %q, which is no refund",
					given.ID, given.Amount, given.Currency, given.PaymentIntent, reference)
			case r.Outcome == statusSucceeded && given.ID != r.Provider:
				complaint = fmt.Sprintf("%s gives back %d %s for %s, which is %s", given.ID, given.Amount, given.Currency, r.ID, r.Provider)
			case r.Outcome == "" && (given.PaymentIntent != r.Intent || given.Amount != r.Amount || given.Currency != r.Currency):
				complaint = fmt.Sprintf("%s gives back %d %s of %s for %s, which is of %d %s of %s",
					given.ID, given.Amount, given.Currency, given.PaymentIntent, r.ID, r.Amount, r.Currency, r.Intent)
			}
			check.see(complaint)
		}
	}
	return check
}

// sumsEqual compares the books with the money, over the refunds that had their
// outcome before the provider was asked.
func (p providerRefunds) sumsEqual(before, after ledgerRefunds) Check {
	check := newCheck("provider: refunded sums equal the books'")
	booked, given := sums{}, sums{}
	for r := range before.settled(after, statusSucceeded, statusFailed) {
		booked.add(r.Currency, r.Booked)
		given.add(r.Currency, 0)
		for _, one := range p[r.ID] {
			given.add(one.Currency, one.Amount)
			booked.add(one.Currency, 0)
		}
	}
	for _, currency := range slices.Sorted(maps.Keys(booked)) {
		complaint := ""
		if booked[currency].Cmp(given[currency]) != 0 {
			complaint = fmt.Sprintf("%s: the provider gave back %s, the books say %s", currency, given[currency], booked[currency])
		}
		check.see(complaint)
	}
	return check
}
