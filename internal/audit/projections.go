package audit

import (
	"encoding/json"
	"fmt"

	"github.com/payonce/payonce/domain"
)

// The projections are held against the ledger at their checkpoint: in one
// snapshot both stand still, and what was committed after the checkpoint is not
// asked of them. So they are what a rebuild would make of them, or are complained
// about.

// seeListed compares a charge's row of the list, byte for byte, with what its
// events up to the checkpoint tell.
func (s *streamChecks) seeListed(stream []storedEvent, events []domain.Event) {
	var projected []domain.Event
	for i, e := range stream {
		if e.Projected {
			projected = append(projected, events[i])
		}
	}
	if len(projected) > 0 {
		s.list.see(mislisted(stream[0], projected))
	}
}

func mislisted(first storedEvent, events []domain.Event) string {
	charge := domain.Fold(domain.Charge{ID: first.StreamID}, events...)
	due, err := listed(charge, first)
	switch {
	case err != nil:
		return fmt.Sprintf("%s: %v", first.StreamID, err)
	case first.Listed == "":
		return first.StreamID + ": not listed"
	case first.Listed != due:
		return fmt.Sprintf("%s: not listed as its first %d events tell: %s", first.StreamID, len(events), charge.Status)
	}
	return ""
}

// listed writes a row of the list as the statement does.
func listed(charge domain.Charge, first storedEvent) (string, error) {
	view, err := json.Marshal(charge.View(first.OccurredAt))
	if err != nil {
		return "", fmt.Errorf("encode what is to be listed: %w", err)
	}
	return fmt.Sprintf("%s %s %s %d %d %s", charge.MerchantID, charge.OrderID, charge.Status, charge.Version,
		first.OccurredAt.UnixMicro(), view), nil
}

const listedChargesExist = `
select case
         when e.stream_id is null
         then l.charge_id || ': listed, and has no event'
       end
  from charge_list l
  join projections p
    on p.generation = l.generation
   and p.state = 'live'
  left join ledger_events e
    on e.stream_id = l.charge_id
   and e.version = 1
   and (e.txid, e.position) <= (p.txid, p.position)`

const balancesAreSums = `
with live as (
  select generation,
         txid,
         position
    from projections
   where state = 'live'
), legs as (
  select p.merchant_id,
         p.debit,
         p.credit,
         p.amount
    from ledger_postings p
    join ledger_events e using (stream_id, version)
   where (e.txid, e.position) <= ((select txid from live), (select position from live))
), sums as (
  select merchant_id,
         account,
         sum(debits)  as debits,
         sum(credits) as credits
    from (
         select merchant_id, debit as account, amount as debits, 0 as credits from legs
          union all
         select merchant_id, credit, 0, amount from legs) as sides
   group by merchant_id, account
), projected as (
  select merchant_id,
         account,
         debits,
         credits
    from account_balances
   where generation = (select generation from live)
)
select case
         when s.account is null
         then format('%s of %s: %s − %s, and nothing was posted', account, merchant_id, p.debits, p.credits)
         when p.account is null
         then format('%s of %s: nothing, should be %s − %s', account, merchant_id, s.debits, s.credits)
         when (p.debits, p.credits) <> (s.debits, s.credits)
         then format('%s of %s: %s − %s, should be %s − %s', account, merchant_id, p.debits, p.credits, s.debits, s.credits)
       end
  from sums s
  full join projected p using (merchant_id, account)`

func projectionPromises() []promise {
	return []promise{
		{"the list shows no charge that is not there", listedChargesExist},
		{"projected balances are the sums of the postings", balancesAreSums},
	}
}
