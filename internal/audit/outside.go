package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Books are what the outside world wrote down by itself: the sandbox's GET /books.
type Books struct {
	Captures      []BookedCapture      `json:"captures"`
	Refunds       []BookedRefund       `json:"refunds"`
	Notifications []BookedNotification `json:"notifications"`
}

// BookedCapture is money that the provider took.
type BookedCapture struct {
	Reference string `json:"reference"` // our charge
	Amount    int64  `json:"amount"`    // the provider's minor units
	Currency  string `json:"currency"`
}

// BookedRefund is money that the provider gave back.
type BookedRefund struct {
	Reference string `json:"reference"` // our refund
	Amount    int64  `json:"amount"`    // the provider's minor units
}

// BookedNotification is one webhook as the merchant had it.
type BookedNotification struct {
	WebhookID  string `json:"webhook_id"`
	Reference  string `json:"reference"` // our charge or refund
	Type       string `json:"type"`
	Deliveries int64  `json:"deliveries"`
	Effects    int64  `json:"effects"`
}

// CompareBooks checks the books of the outside against the ledger's outcomes. The
// ledger must be at rest, and all that it says must be in the books: what is told
// to nobody, or elsewhere, is a violation.
func CompareBooks(ctx context.Context, q postgres.Querier, b Books) ([]Check, error) {
	rows, err := q.Query(ctx, selectOutcomes)
	if err != nil {
		return nil, fmt.Errorf("read the outcomes: %w", err)
	}
	outcomes, err := pgx.CollectRows(rows, pgx.RowToStructByName[outcome])
	if err != nil {
		return nil, fmt.Errorf("read the outcomes: %w", err)
	}
	return []Check{
		b.tookAsTheLedgerSays(outcomes),
		b.tookOfChargesAlone(outcomes),
		b.gaveAsTheLedgerSays(outcomes),
		b.gaveForRefundsAlone(outcomes),
		b.toldOnce(outcomes),
		b.toldOfOutcomesAlone(outcomes),
	}, nil
}

// outcome is the end of a charge or of a refund.
type outcome struct {
	ID       string // of the charge or the refund
	EventID  string
	Type     string // what the merchant is told
	Amount   int64  // minor units of ISO 4217
	Currency string
	Told     bool // the merchant wanted to be told
}

// atProvider is the amount in the provider's minor units. It asks no code of the
// client, so that a mistake there is found here.
// Source: https://docs.stripe.com/currencies, "Special cases".
func (o outcome) atProvider() int64 {
	switch o.Currency {
	case "ISK", "UGX": // none in ISO 4217, two at Stripe
		return o.Amount * 100
	case "MGA": // two in ISO 4217, none at Stripe
		return o.Amount / 100
	default:
		return o.Amount
	}
}

func (o outcome) isRefund() bool { return o.Type == refundSucceeded || o.Type == refundFailed }

// What the merchant is told.
const (
	chargeSucceeded = "charge.succeeded"
	refundSucceeded = "refund.succeeded"
	refundFailed    = "refund.failed"
)

const selectOutcomes = `
select coalesce(o.data ->> 'refund_id', o.stream_id) as id,
       o.event_id::text as event_id,
       case
         when o.type like 'refund.reversed.v%' then 'refund.failed'
         else regexp_replace(o.type, '\.v\d+$', '')
       end as type,
       (r.data ->> 'amount')::bigint as amount,
       c.data ->> 'currency' as currency,
       coalesce(r.data ->> 'notify', '') = 'true' as told
  from ledger_events o
  join ledger_events r
    on r.stream_id = o.stream_id
   and r.type ~ '^(charge|refund)\.requested\.v'
   and r.data ->> 'refund_id' is not distinct from o.data ->> 'refund_id'
  join ledger_events c
    on c.stream_id = o.stream_id
   and c.type like 'charge.requested.v%'
 where o.type ~ '^(charge\.(succeeded|failed)|refund\.(succeeded|failed|reversed))\.v'
 order by o.stream_id, o.version`

func (b Books) tookAsTheLedgerSays(outcomes []outcome) Check {
	check := newCheck("books: a succeeded charge was captured once, in full, and a failed one never")
	taken := map[string][]BookedCapture{}
	for _, c := range b.Captures {
		taken[c.Reference] = append(taken[c.Reference], c)
	}
	for _, o := range outcomes {
		if o.isRefund() {
			continue
		}
		complaint := ""
		switch of := taken[o.ID]; {
		case o.Type != chargeSucceeded && len(of) > 0:
			complaint = fmt.Sprintf("%s: %s, and captured %d times", o.ID, o.Type, len(of))
		case o.Type != chargeSucceeded:
		case len(of) != 1:
			complaint = fmt.Sprintf("%s: captured %d times", o.ID, len(of))
		case of[0].Amount != o.atProvider() || !strings.EqualFold(of[0].Currency, o.Currency):
			complaint = fmt.Sprintf("%s: captured %d %s, not %d %s", o.ID, of[0].Amount, of[0].Currency, o.atProvider(), o.Currency)
		}
		check.see(complaint)
	}
	return check
}

func (b Books) tookOfChargesAlone(outcomes []outcome) Check {
	check := newCheck("books: every capture is a finished charge's")
	for _, c := range b.Captures {
		complaint := ""
		if !slices.ContainsFunc(outcomes, func(o outcome) bool { return o.ID == c.Reference }) {
			complaint = fmt.Sprintf("%d %s captured for %q", c.Amount, c.Currency, c.Reference)
		}
		check.see(complaint)
	}
	return check
}

func (b Books) gaveAsTheLedgerSays(outcomes []outcome) Check {
	check := newCheck("books: a succeeded refund was given back once, in full, and a failed one never")
	given := map[string][]BookedRefund{}
	for _, r := range b.Refunds {
		given[r.Reference] = append(given[r.Reference], r)
	}
	final := map[string]outcome{} // of several, the last
	for _, o := range outcomes {
		if o.isRefund() {
			final[o.ID] = o
		}
	}
	for _, o := range outcomes {
		if !o.isRefund() || final[o.ID].EventID != o.EventID {
			continue
		}
		complaint := ""
		switch to := given[o.ID]; {
		case o.Type == refundFailed && len(to) > 0:
			complaint = fmt.Sprintf("%s: failed, and given back %d times", o.ID, len(to))
		case o.Type == refundFailed:
		case len(to) != 1:
			complaint = fmt.Sprintf("%s: given back %d times", o.ID, len(to))
		case to[0].Amount != o.atProvider():
			complaint = fmt.Sprintf("%s: gave back %d, not %d", o.ID, to[0].Amount, o.atProvider())
		}
		check.see(complaint)
	}
	return check
}

func (b Books) gaveForRefundsAlone(outcomes []outcome) Check {
	check := newCheck("books: every refund given is a finished one")
	for _, r := range b.Refunds {
		complaint := ""
		if !slices.ContainsFunc(outcomes, func(o outcome) bool { return o.ID == r.Reference }) {
			complaint = fmt.Sprintf("%d given back for %q", r.Amount, r.Reference)
		}
		check.see(complaint)
	}
	return check
}

func (b Books) toldOnce(outcomes []outcome) Check {
	check := newCheck("books: every outcome was told, and took effect at the merchant's once")
	told := map[string][]BookedNotification{}
	for _, n := range b.Notifications {
		told[n.WebhookID] = append(told[n.WebhookID], n)
	}
	for _, o := range outcomes {
		if !o.Told {
			continue
		}
		complaint := ""
		switch of := told[o.EventID]; {
		case len(of) != 1:
			complaint = fmt.Sprintf("%s: %s was told %d times", o.ID, o.Type, len(of))
		case of[0].Type != o.Type || of[0].Reference != o.ID:
			complaint = fmt.Sprintf("%s: %s was told as %s of %s", o.ID, o.Type, of[0].Type, of[0].Reference)
		case of[0].Effects != 1 || of[0].Deliveries < 1:
			complaint = fmt.Sprintf("%s: %s took effect %d times in %d deliveries", o.ID, o.Type, of[0].Effects, of[0].Deliveries)
		}
		check.see(complaint)
	}
	return check
}

func (b Books) toldOfOutcomesAlone(outcomes []outcome) Check {
	check := newCheck("books: the merchant was told of outcomes alone")
	for _, n := range b.Notifications {
		complaint := ""
		if !slices.ContainsFunc(outcomes, func(o outcome) bool { return o.EventID == n.WebhookID }) {
			complaint = fmt.Sprintf("%s: told %s by %s, which is no outcome", n.Reference, n.Type, n.WebhookID)
		}
		check.see(complaint)
	}
	return check
}
