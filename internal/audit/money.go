package audit

import (
	"context"

	"github.com/payonce/payonce/internal/postgres"
)

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
func readMoney(ctx context.Context, q postgres.Querier) (map[string]map[string]money, error) {
	all, err := collect[money](ctx, q, "the ledger's money", selectMoney)
	byKind := map[string]map[string]money{kindCharge: {}, kindRefund: {}, kindDispute: {}}
	for _, m := range all {
		byKind[m.Kind][m.ID] = m
	}
	return byKind, err
}
