package audit

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/payonce/payonce/internal/postgres"
)

// Listed is a payment, a refund or a dispute in the provider's list.
type Listed struct {
	ID            string
	Reference     string // our charge or its reference, or our refund; empty where the provider knows none
	PaymentIntent string // of the payment itself, or of the payment that is refunded or disputed
	Status        string // the provider's word; of a dispute open, or how it ended
	// Amount is what was captured, is refunded, or was taken for a dispute with its fee and not given
	// back, in minor units. What is taken from a balance in another currency is in units of that one.
	Amount   int64
	Currency string // upper case
	Moves    string // the ids of a dispute's movements, sorted and separated by spaces
}

// Provided are the provider's lists.
type Provided struct{ Payments, Refunds, Disputes iter.Seq2[Listed, error] }

// The provider's words on which a check depends.
const (
	statusSucceeded = "succeeded"
	statusCanceled  = "canceled"
	statusFailed    = "failed"
)

// Reconcile checks the provider's lists against the ledger. What does not have payonce's
// metadata is foreign, for others may use the account: it is not judged. Refunds
// and disputes of a payment of payonce's are judged, both from the API and from the dashboard. Reconcile holds what
// the ledger has of charges, refunds and disputes, and the lists, in memory, a few hundred
// bytes each. An error of a list ends it.
//
// Traffic does not make a check fail. What must be at the provider is read from the ledger
// before the lists, and what must be in the ledger after them; a charge or a refund whose
// outcome is recorded in between is judged by what is certain of it. A refund that fails
// at the provider after it succeeded is a violation until the ledger has its reversal, and
// what was done outside payonce until the ledger has observed it.
//
// missed are the charges whose refunds or disputes the provider lists otherwise than the ledger
// has them: the provider's event was lost, or is not handled yet. A read of both lists for the
// charge records what can be recorded.
func Reconcile(ctx context.Context, db Database, lists Provided) (checks []Check, missed []string, err error) {
	charges := &comparison{
		noun: kindCharge, took: "took", taken: "captured", remedy: ": refund it at the provider",
		moved: func(l Listed) bool { return l.Status == statusSucceeded || l.Amount > 0 },
	}
	returns := &comparison{
		noun: kindRefund, took: "gave back", taken: "given back",
		moved: func(l Listed) bool {
			return l.Status != statusFailed && l.Status != statusCanceled && (l.Reference != l.ID || l.Status == statusSucceeded)
		},
	}
	withheld := &comparison{noun: kindDispute, took: "withholds", taken: "withheld", moved: func(Listed) bool { return true }}
	all := []*comparison{charges, returns, withheld}
	before, err := readMoney(ctx, db)
	for i, list := range []iter.Seq2[Listed, error]{lists.Payments, lists.Refunds, lists.Disputes} {
		if err == nil {
			err = all[i].list(list, charges)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	after, err := readMoney(ctx, db)
	if err != nil {
		return nil, nil, err
	}
	returned := returnedWithoutCharge(charges.listed, returns.listed, after[kindCharge])
	for _, c := range all {
		c.before, c.after = before[c.noun], after[c.noun]
		maps.DeleteFunc(c.listed, func(_ string, l Listed) bool {
			_, gone := returned[l.PaymentIntent]
			return gone
		})
		c.attribute()
	}
	return []Check{
		charges.once("provider: one capture per charge"),
		charges.inFull("provider: a succeeded charge was captured in full"),
		charges.nothingOfFailed("provider: a failed charge was not captured, and its intent is canceled"),
		charges.inTheLedger("provider: every capture is a charge's in the ledger"),
		charges.equalSums("provider: captured sums equal the ledger's"),
		returns.once("provider: one refund for each refund"),
		returns.inFull("provider: a succeeded refund was returned in full"),
		returns.nothingOfFailed("provider: a failed refund returned nothing"),
		returns.inTheLedger("provider: every refund is one of the ledger's"),
		returns.equalSums("provider: refunded sums equal the ledger's"),
		withheld.inTheLedger("provider: every dispute is one of the ledger's"),
		withheld.asListed("provider: a dispute is in the ledger as the provider has it"),
		withheld.equalSums("provider: withheld sums equal the ledger's"),
	}, unrecorded(charges, returns, withheld), nil
}

// returnedWithoutCharge are the payments that no charge has and that were refunded in full, by an
// operator at the provider, and what is left of each: nothing.
func returnedWithoutCharge(payments, refunds map[string]Listed, charges map[string]money) map[string]int64 {
	left := map[string]int64{}
	for id, l := range payments {
		left[id] = l.Amount
	}
	for _, r := range refunds {
		if r.Status == statusSucceeded {
			left[r.PaymentIntent] -= r.Amount
		}
	}
	for _, m := range charges {
		delete(left, m.Intent)
	}
	maps.DeleteFunc(left, func(id string, amount int64) bool { return payments[id].Amount == 0 || amount > 0 })
	return left
}

// comparison is the ledger beside one of the provider's lists.
type comparison struct {
	noun, took, taken, remedy string            // of its complaints
	moved                     func(Listed) bool // whether money moved, or may yet

	before, after map[string]money    // what the ledger said before the list was read, and after
	listed        map[string]Listed   // by the provider's ID
	byReference   map[string][]Listed // those that moved money, by our ID
}

// list reads a list. What is not payonce's, nor of a payment of payonce's, is foreign. What
// was made outside goes by the provider's ID.
func (c *comparison) list(all iter.Seq2[Listed, error], payments *comparison) error {
	c.listed, c.byReference = map[string]Listed{}, map[string][]Listed{}
	for l, err := range all {
		if err != nil {
			return fmt.Errorf("read the provider's list for each %s: %w", c.noun, err)
		}
		if l.Reference != "" || payments.listed[l.PaymentIntent].Reference != "" {
			l.Reference = cmp.Or(l.Reference, l.ID)
			c.listed[l.ID] = l
		}
	}
	return nil
}

// attribute replaces references by the ids of their charges, and sorts what moved money by id.
func (c *comparison) attribute() {
	ids := map[string]string{}
	for _, id := range sorted(c.after) {
		if m := c.after[id]; m.Name != "" && (ids[m.Name] == "" || m.Provider != "") { // a captured one, if there are several
			ids[m.Name] = id
		}
	}
	for _, id := range sorted(c.listed) {
		l := c.listed[id]
		l.Reference = cmp.Or(ids[l.Reference], l.Reference)
		c.listed[id] = l
		if c.moved(l) {
			c.byReference[l.Reference] = append(c.byReference[l.Reference], l)
		}
	}
}

// withOutcome returns what had its outcome before the list was read, and has no other since.
func (c *comparison) withOutcome(outcomes ...string) (all []money) {
	for _, id := range sorted(c.before) {
		if m := c.before[id]; slices.Contains(outcomes, m.Outcome) && c.after[id].Outcome == m.Outcome {
			all = append(all, m)
		}
	}
	return all
}

func (c *comparison) once(name string) Check {
	return checkEach(name, sorted(c.after), func(id string) string {
		moved := c.byReference[id]
		if len(moved) < 2 { //nolint:mnd // the second is one too many
			return ""
		}
		return fmt.Sprintf("%s: %s %d times, by %s and %s", id, c.taken, len(moved), moved[0].ID, moved[1].ID)
	})
}

func (c *comparison) inFull(name string) Check {
	return checkEach(name, c.withOutcome(statusSucceeded), func(m money) string {
		want := Listed{m.Provider, m.ID, m.Intent, statusSucceeded, m.Amount, m.Currency, ""}
		switch l, listed := c.listed[m.Provider]; {
		case !listed:
			return fmt.Sprintf("%s: the provider does not list %q", m.ID, m.Provider)
		case l != want:
			return fmt.Sprintf("%s: the provider lists %+v, the ledger has %+v", m.ID, l, want)
		}
		return ""
	})
}

// nothingOfFailed checks that nothing moved for what failed. The intent that a failed charge has started is
// canceled, since it could still take money. Intents beside it are never confirmed.
func (c *comparison) nothingOfFailed(name string) Check {
	return checkEach(name, c.withOutcome(statusFailed), func(m money) string {
		moved, l := c.byReference[m.ID], c.listed[m.Intent]
		switch {
		case len(moved) > 0:
			return fmt.Sprintf("%s: failed, and %s %s %d %s", m.ID, moved[0].ID, c.took, moved[0].Amount, moved[0].Currency)
		case c.noun == kindCharge && m.Intent != "" && l.Status != statusCanceled:
			return fmt.Sprintf("%s: the provider lists %s as %q", m.ID, m.Intent, l.Status)
		}
		return ""
	})
}

// inTheLedger compares each listed object that moved money with the ledger. A charge or refund without outcome may have moved a
// moment ago, but only by its own intent and in its own amount. What moved for a failed one
// is another check.
func (c *comparison) inTheLedger(name string) Check {
	var moved []Listed
	for _, reference := range sorted(c.byReference) {
		moved = append(moved, c.byReference[reference]...)
	}
	return checkEach(name, moved, func(l Listed) string {
		m, known := c.after[l.Reference]
		what := fmt.Sprintf("%s %s %d %s for ", l.ID, c.took, l.Amount, l.Currency)
		switch {
		case !known:
			return what + fmt.Sprintf("%q, which is no %s%s", l.Reference, c.noun, c.remedy)
		case m.Outcome == statusSucceeded && l.ID != m.Provider:
			return what + fmt.Sprintf("%s, which was %s by %s", m.ID, c.taken, m.Provider)
		case m.Outcome == "" && (l.PaymentIntent != m.Intent || l.Amount != m.Amount || l.Currency != m.Currency):
			return what + fmt.Sprintf("%s, which is about %d %s of %q", m.ID, m.Amount, m.Currency, m.Intent)
		}
		return ""
	})
}

// isRecorded reports whether the ledger has a refund or a dispute as it is listed.
func (c *comparison) isRecorded(l Listed) bool {
	m := c.after[l.Reference]
	if c.noun == kindRefund && l.Status != statusSucceeded {
		return m.Booked == 0
	}
	return m.Booked == l.Amount && (c.noun == kindRefund || m.Dispute == l.Status && m.Moves == l.Moves)
}

// asListed compares the disputes that the ledger has and that did not change during the reads.
func (c *comparison) asListed(name string) Check {
	known := slices.DeleteFunc(sorted(c.listed), func(id string) bool { return c.before[id].ID == "" || c.before[id] != c.after[id] })
	return checkEach(name, known, func(id string) string {
		l, m := c.listed[id], c.after[id]
		if c.isRecorded(l) {
			return ""
		}
		return fmt.Sprintf("%s: the provider says %s with %d withheld by %q, the ledger says %s with %d by %q",
			id, l.Status, l.Amount, l.Moves, m.Dispute, m.Booked, m.Moves)
	})
}

// unrecorded are the charges of what is listed otherwise than the ledger has it.
func unrecorded(payments *comparison, all ...*comparison) []string {
	charges := map[string]bool{}
	for _, c := range all {
		for _, l := range c.listed {
			if charge := payments.listed[l.PaymentIntent].Reference; payments.after[charge].ID != "" && !c.isRecorded(l) {
				charges[charge] = true
			}
		}
	}
	return sorted(charges)
}

// equalSums compares the ledger with the provider's money, over what has its outcome. Sums too large for 64 bits
// wrap around on both sides.
func (c *comparison) equalSums(name string) Check {
	more := map[string]int64{} // at the provider than in the ledger, by currency
	for _, m := range c.withOutcome(statusSucceeded, statusFailed) {
		more[m.Currency] -= m.Booked
		for _, l := range c.byReference[m.ID] {
			more[l.Currency] += l.Amount
		}
	}
	return checkEach(name, sorted(more), func(currency string) string {
		if more[currency] == 0 {
			return ""
		}
		return fmt.Sprintf("%s: the provider %s %+d beside what the ledger says", currency, c.took, more[currency])
	})
}

func sorted[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// What money is about.
const (
	kindCharge  = "charge"
	kindRefund  = "refund"
	kindDispute = "dispute"
)

// money is what the ledger says of a charge, a refund or a dispute.
type money struct {
	ID       string
	Kind     string
	Name     string // the charge's reference at the provider, or empty
	Amount   int64
	Currency string
	Outcome  string // succeeded (a dispute always), failed (a refund also after it succeeded), or empty
	Intent   string // the payment intent that was started, or whose capture is refunded
	Provider string // the intent that was captured, or the provider's refund or dispute; empty where none is known
	Booked   int64  // minor units that the ledger has moved at the provider, as Listed.Amount
	Dispute  string // open, or how the dispute ended; empty of a charge or a refund
	Moves    string // the ids of a dispute's movements, as Listed.Moves
}

const selectMoney = `
-- audit.selectMoney
with booked as (
  select stream_id,
         version,
         sum(case when debit like 'psp\_receivable:%' then amount else -amount end)::bigint as amount
    from ledger_postings
   where credit like 'psp\_receivable:%'
      or debit like 'psp\_receivable:%'
   group by stream_id, version
), charges as (
  select stream_id,
         max(data ->> 'currency')       filter (where type like 'charge.requested.v%') as currency,
         max(data ->> 'reference')      filter (where type like 'charge.requested.v%') as name,
         max(data ->> 'payment_intent') filter (where type like 'payment.captured.v%') as captured
    from ledger_events
   group by stream_id
), moved as (
  select e.*,
         case when e.data ? 'refund_id' then 'refund' when e.data ? 'dispute_id' then 'dispute' else 'charge' end as kind,
         coalesce(e.data ->> 'refund_id', e.data ->> 'dispute_id', e.stream_id)                                  as id,
         coalesce(substring(coalesce(e.data ->> 'settled_amount', e.data ->> 'amount') from '^[0-9]{1,16}$')::bigint, 0)
       + coalesce(substring(e.data ->> 'fee' from '^-?[0-9]{1,16}$')::bigint, 0)                                 as taken
    from ledger_events e
)
select m.id,
       m.kind,
       case m.kind when 'charge' then coalesce(c.name, '') else '' end                                         as name,
       coalesce(max(substring(m.data ->> 'amount' from '^[0-9]{1,18}$')::bigint) filter (where m.type ~ '^((charge|refund)\.requested|refund\.observed)\.v'), 0) as amount,
       coalesce(c.currency, '')                                                                                as currency,
       case
         when bool_or(m.type ~ '^refund\.(failed|reversed)\.v')    then 'failed'
         when bool_or(m.type ~ '^((charge|refund)\.succeeded|refund\.observed)\.v') then 'succeeded'
         when bool_or(m.type like 'charge.failed.v%')              then 'failed'
         when m.kind = 'dispute'                                   then 'succeeded'
         else ''
       end                                                                                                     as outcome,
       coalesce(max(m.data ->> 'payment_intent') filter (where m.type like 'payment.started.v%'), c.captured, '') as intent,
       coalesce(case m.kind when 'refund' then max(m.data ->> 'provider_refund') when 'dispute' then m.id else c.captured end, '') as provider,
       coalesce(sum(case
                      when m.kind = 'charge'                            then b.amount
                      when m.kind = 'refund'                            then -b.amount
                      when m.type like 'charge.dispute\_withdrawn.v%'  then m.taken
                      when m.type like 'charge.dispute\_reinstated.v%' then -m.taken
                    end), 0)::bigint                                                                           as booked,
       case m.kind when 'dispute' then coalesce((array_agg(m.data ->> 'status' order by m.version desc) filter (where m.data ? 'status'))[1], 'open')
                   else '' end                                                                                 as dispute,
       coalesce(string_agg(m.data ->> 'transaction', ' ' order by m.data ->> 'transaction' collate "C"), '')    as moves
  from moved m
  join charges c using (stream_id)
  left join booked b using (stream_id, version)
 group by m.id, m.kind, m.stream_id, c.currency, c.name, c.captured`

// readMoney returns the ledger's money of each kind, by its ID.
func readMoney(ctx context.Context, db Database) (map[string]map[string]money, error) {
	all, err := collectUnder[money](ctx, db, postgres.ReadWholeTables, "the ledger's money", selectMoney)
	byKind := map[string]map[string]money{kindCharge: {}, kindRefund: {}, kindDispute: {}}
	for _, m := range all {
		byKind[m.Kind][m.ID] = m
	}
	return byKind, err
}
