package fulfillment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
)

// lost is what the database knows of the payments of a reference that no charge has.
type lost struct {
	unscanned bool // the database may have lost charges, and the provider's list is not read yet
	uncreated bool // the same, for charges whose creation of a payment failed
	payments  []lostPayment
}

type lostPayment struct {
	intent  string
	amount  domain.Money
	adopted bool
}

const (
	selectLost = `
select asked.reference,
       (select recovery_pending()) as unscanned,
       exists (
         select
           from recoveries
          where reason = 'creation'
            and scanned_at is null) as uncreated,
       coalesce(l.payment_intent, ''),
       coalesce(l.amount, 0),
       coalesce(l.currency, ''),
       a.payment_intent is not null as adopted
  from unnest($1::text[]) as asked(reference)
  left join lost_payments l
    on l.reference = asked.reference
  left join adoptions a
    on a.payment_intent = l.payment_intent`

	// insertAdoption refuses a payment that an operator has.
	insertAdoption = `
insert into adoptions (payment_intent, charge_id)
select payment_intent, $2
  from lost_payments
 where payment_intent = $1`

	insertAdoptions = `
insert into adoptions (payment_intent, charge_id)
select l.payment_intent, started.charge_id
  from unnest($1::text[], $2::text[]) as started(payment_intent, charge_id)
 cross join lateral (
       select payment_intent
         from lost_payments
        where payment_intent = started.payment_intent
       offset 0) l`

	// insertCreationFailed makes a worker read the provider's list before the charge uses its
	// next key, because a charge that the database has lost may have used the failed key.
	//   - After a 400 that says that the key belongs to other parameters ($1), it always does.
	//   - After a 5xx, it does so for 25 hours after a recovery: the provider keeps keys for 24.
	// The worker reads the list from the time of that recovery. Without one, only an open charge
	// can have used the key, by a program of another version: then lost_since bounds the list.
	insertCreationFailed = `
insert into recoveries (id, history, since, reason)
select last_known.id + 1, last_known.history, coalesce(recent.since, lost_since()), 'creation'
  from (select id, history from recoveries order by id desc limit 1) as last_known,
       (select min(since) as since
          from recoveries
         where reason in ('history', 'repair')
           and detected_at > clock_timestamp() - interval '25 hours') as recent
 where $1
    or recent.since is not null
    on conflict (id) do nothing`
)

// newLost reads the lost payments of references. Nothing is cached.
func newLost(q postgres.Querier) *postgres.Reads[string, lost] {
	return postgres.NewReads(maxReadsInFlight, func(ctx context.Context, asked []string) ([]lost, error) {
		found := make([]lost, len(asked))
		var of string
		var unscanned, uncreated bool
		var l lostPayment
		rows, _ := q.Query(ctx, selectLost, slices.Compact(slices.Sorted(slices.Values(asked)))) // ForEachRow returns its error
		_, err := pgx.ForEachRow(rows, []any{&of, &unscanned, &uncreated, &l.intent, &l.amount.Amount, &l.amount.Currency, &l.adopted}, func() error {
			for i := range asked {
				if found[i].unscanned, found[i].uncreated = unscanned, uncreated; asked[i] == of && l.intent != "" {
					found[i].payments = append(found[i].payments, l)
				}
			}
			return nil
		})
		return found, err
	})
}

// isAdopted reports whether the payment was adopted since it was read.
func isAdopted(err error) bool { return groupcommit.Constraint(err) == "adoptions_pkey" }

// intercept returns the act that runs instead of due, the one that is due.
//   - A charge without a payment intent first takes its lost payment, if there is one.
//   - A charge that has taken a lost payment runs its steps before the payment. If one of them
//     would fail the charge, stop first cancels the intent: its money may have been taken.
//   - For every other charge it is due itself.
func (p *payment) intercept(c domain.Charge, due act) act {
	switch {
	case !c.Started() && !p.lostPaymentChecked:
		return func(ctx context.Context, s ledger.Stream) (decision, error) {
			if d, err := p.take(ctx, s); err != nil || d.command != nil {
				return d, err
			}
			return due(ctx, s)
		}
	case !c.LostIntent || c.Next() == domain.Payment:
		return due
	}
	return func(ctx context.Context, s ledger.Stream) (decision, error) {
		d, err := due(ctx, s)
		if err != nil || d.command == nil {
			return d, err
		}
		events, err := domain.Decide(s.Charge, d.command)
		fails := slices.ContainsFunc(events, func(e domain.Event) bool { _, ends := e.(domain.ChargeFailed); return ends })
		if err != nil || !fails {
			return d, err
		}
		return p.stop(ctx, s, d.command)
	}
}

// scanPause bounds the pause of a charge that waits for the provider's list.
const scanPause = 10 * time.Second

var errUnscanned = errors.New("the database may have lost charges, and their payments are not read from the provider yet")

// take takes the payment of a charge with the same reference that the database has lost, and has
// its refunds and disputes read. It waits while the provider's list is not read.
//
// If we die here: nothing is recorded, or the intent and whose it is in one commit. The next
// worker continues with the intent as with any other.
// Test: TestLostPayment.
func (p *payment) take(ctx context.Context, s ledger.Stream) (decision, error) {
	found, err := p.lost.Lookup(ctx, reference(s.Charge))
	switch {
	case err != nil:
		return decision{}, fmt.Errorf("read lost payments: %w", err)
	case found.unscanned || found.uncreated && s.Charge.CreateFailures > 0:
		return decision{}, &inbox.WaitError{AtMost: scanPause, Err: errUnscanned}
	}
	var intents []string
	refused := ""
	for _, l := range found.payments {
		switch {
		case l.adopted:
			refused = "an operator has decided to refund the payment that was made under this key: use a new key"
		case l.amount != s.Charge.Amount:
			refused = cmp.Or(refused, "this key was used for a payment of another amount: use a new key")
		default:
			intents = append(intents, l.intent)
		}
	}
	if p.lostPaymentChecked = len(intents) == 0 || refused != ""; p.lostPaymentChecked {
		if refused != "" {
			p.refused = &domain.Failure{Code: domain.ProviderRefused, Message: refused}
		}
		return decision{}, nil
	}
	intent, err := p.choose(ctx, intents)
	if err != nil {
		return callFailed(ctx, err, nil)
	}
	return decision{
		command: domain.StartPayment{Provider: domain.Provider, PaymentIntent: intent, Lost: true},
		rows: func(b *pgx.Batch) {
			b.Queue(insertAdoption, intent, s.ID)
			Reread(b, ledger.Owner{StreamID: s.ID, MerchantID: s.Charge.MerchantID})
		},
	}, nil
}

// choose returns the intent that took the money, or may. Of several it cancels each first, since
// a confirmation of any of them may be in flight.
func (p *payment) choose(ctx context.Context, intents []string) (chosen string, err error) {
	chosen = intents[0]
	for _, id := range intents {
		if len(intents) == 1 {
			break
		}
		canceled, err := p.provider.CancelIntent(ctx, id)
		if err != nil {
			return "", err
		}
		if canceled.Status != stripe.Canceled {
			chosen = id
		}
	}
	return chosen, nil
}

// reference is the charge's name at the provider.
func reference(c domain.Charge) string { return cmp.Or(c.Reference, c.ID) }

// createKey is the Idempotency-Key of the creation. It follows from the client's key and from
// how often the creation failed, so each database comes to the same keys.
func createKey(s ledger.Stream) string {
	if s.Charge.Reference == "" {
		return attemptKey(s)
	}
	return fmt.Sprintf("%s-%d", s.Charge.Reference, s.Charge.CreateFailures)
}
