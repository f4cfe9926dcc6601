package audit

import (
	"context"
	"fmt"
	"strings"

	"github.com/payonce/payonce/internal/postgres"
)

// Books are what the outside world wrote down by itself: the sandbox's GET /books.
type Books struct {
	Captures      []BookedMoney        `json:"captures"`
	Refunds       []BookedMoney        `json:"refunds"`
	Notifications []BookedNotification `json:"notifications"`
}

// BookedMoney is a capture or a refund at the provider.
type BookedMoney struct {
	Reference string `json:"reference"` // our charge or refund
	Amount    int64  `json:"amount"`    // the provider's minor units
	Currency  string `json:"currency"`  // empty for a refund
}

// BookedNotification is one webhook as the merchant received it.
type BookedNotification struct {
	WebhookID  string `json:"webhook_id"`
	Reference  string `json:"reference"` // our charge or refund
	Type       string `json:"type"`
	Deliveries int64  `json:"deliveries"`
	Effects    int64  `json:"effects"`
}

// CompareBooks checks the books of the outside against the ledger's outcomes. The ledger
// must be at rest, and each of its outcomes must be in the books: an outcome that was
// delivered to no merchant, or to another one, is a violation.
func CompareBooks(ctx context.Context, q postgres.Querier, b Books) ([]Check, error) {
	outcomes, err := collect[outcome](ctx, q, "the outcomes", selectOutcomes)
	if err != nil {
		return nil, err
	}
	finished, announced := map[string]bool{}, map[string]bool{}
	final := map[string]outcome{} // of a refund that was reversed, the reversal
	var notified []outcome
	for _, o := range outcomes {
		finished[o.ID], announced[o.EventID], final[o.ID] = true, true, o
		if o.Notify {
			notified = append(notified, o)
		}
	}
	var charges, refunds []outcome
	for _, id := range sorted(final) {
		if o := final[id]; strings.HasPrefix(o.Type, "charge.") {
			charges = append(charges, o)
		} else {
			refunds = append(refunds, o)
		}
	}
	return []Check{
		movedOnce("books: a succeeded charge was captured once, in full, and a failed one never", "captured", charges, b.Captures),
		checkEach("books: every capture is a finished charge's", b.Captures, func(m BookedMoney) string {
			return unless(finished[m.Reference], "%d %s captured for %q", m.Amount, m.Currency, m.Reference)
		}),
		movedOnce("books: a succeeded refund was given back once, in full, and a failed one never", "given back", refunds, b.Refunds),
		checkEach("books: every refund given is a finished one", b.Refunds, func(m BookedMoney) string {
			return unless(finished[m.Reference], "%d given back for %q", m.Amount, m.Reference)
		}),
		notifiedOnce("books: every outcome was told, and took effect at the merchant's once", notified, b.Notifications),
		checkEach("books: the merchant was told of outcomes alone", b.Notifications, func(n BookedNotification) string {
			return unless(announced[n.WebhookID], "%s: told %s by %s, which is no outcome", n.Reference, n.Type, n.WebhookID)
		}),
	}, nil
}

func unless(holds bool, complaint string, args ...any) string {
	if holds {
		return ""
	}
	return fmt.Sprintf(complaint, args...)
}

// outcome is the end of a charge or of a refund.
type outcome struct {
	ID       string // of the charge or the refund
	EventID  string
	Type     string // of the webhook
	Amount   int64  // minor units of ISO 4217
	Currency string
	Notify   bool // the merchant has a webhook
}

// atProvider is the amount in the provider's minor units. It does not use the provider's
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

const selectOutcomes = `
select coalesce(o.data ->> 'refund_id', o.stream_id) as id,
       o.event_id::text as event_id,
       case
         when o.type like 'refund.reversed.v%' then 'refund.failed'
         else regexp_replace(o.type, '\.v\d+$', '')
       end as type,
       (r.data ->> 'amount')::bigint as amount,
       c.data ->> 'currency' as currency,
       coalesce(r.data ->> 'notify', '') = 'true' as notify
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

// movedOnce compares each outcome with the money that the provider booked for it.
func movedOnce(name, moved string, outcomes []outcome, booked []BookedMoney) Check {
	of := map[string][]BookedMoney{}
	for _, m := range booked {
		of[m.Reference] = append(of[m.Reference], m)
	}
	return checkEach(name, outcomes, func(o outcome) string {
		switch all, succeeded := of[o.ID], strings.HasSuffix(o.Type, ".succeeded"); {
		case !succeeded:
			return unless(len(all) == 0, "%s: %s, and %s %d times", o.ID, o.Type, moved, len(all))
		case len(all) != 1:
			return fmt.Sprintf("%s: %s %d times", o.ID, moved, len(all))
		default:
			m := all[0]
			return unless(m.Amount == o.atProvider() && (m.Currency == "" || strings.EqualFold(m.Currency, o.Currency)),
				"%s: %s %d %s, not %d %s", o.ID, moved, m.Amount, m.Currency, o.atProvider(), o.Currency)
		}
	})
}

// notifiedOnce compares each outcome with the webhooks that the merchant received.
func notifiedOnce(name string, outcomes []outcome, received []BookedNotification) Check {
	of := map[string][]BookedNotification{}
	for _, n := range received {
		of[n.WebhookID] = append(of[n.WebhookID], n)
	}
	return checkEach(name, outcomes, func(o outcome) string {
		all := of[o.EventID]
		if len(all) != 1 {
			return fmt.Sprintf("%s: %s was told %d times", o.ID, o.Type, len(all))
		}
		n := all[0]
		if n.Type != o.Type || n.Reference != o.ID {
			return fmt.Sprintf("%s: %s was told as %s of %s", o.ID, o.Type, n.Type, n.Reference)
		}
		return unless(n.Effects == 1 && n.Deliveries > 0,
			"%s: %s took effect %d times in %d deliveries", o.ID, o.Type, n.Effects, n.Deliveries)
	})
}
