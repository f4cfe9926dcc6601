package sandbox

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
)

const insertIntent = `
insert into payment_intents (
  id, amount, currency, status, payment_method, description, metadata, created_at)
values ($1, $2, $3, $4, $5, nullif($6, ''), $7, $8)`

// createIntent makes an intent and, with confirm=true, attempts it at once.
func (s *Sandbox) createIntent(c *call) (execution, error) {
	p := c.params
	i := intent{ID: newID("pi_"), Status: statusRequiresMethod, CreatedAt: s.options.Now()}
	i.Amount = p.amount("amount")
	i.Currency = p.currency("currency")
	i.Metadata = p.metadata()
	method, description := p.method("payment_method"), p.text("description")
	confirm := p.boolean("confirm")
	unattended := p.unattended()
	p.word("capture_method", "automatic", "automatic_async")
	p.word("confirmation_method", "automatic")
	p.ignore("automatic_payment_methods", "payment_method_types", "return_url", "use_stripe_sdk")
	if p.values.Get("amount") == "" {
		p.refuse(missing("amount"))
	}
	if refusal := indivisible(i.Amount, i.Currency); refusal != nil {
		p.refuse(refusal)
	}
	switch {
	case confirm && method == "":
		p.refuse(missing("payment_method"))
	case unattended && !confirm:
		p.refuse(invalid("", "off_session", "off_session and error_on_requires_action need confirm=true."))
	}
	if err := p.done(); err != nil {
		return nil, err
	}
	if method != "" {
		i.Status, i.PaymentMethod = statusRequiresConfirmation, &method
	}
	if description != "" {
		i.Description = &description
	}
	return func(_ context.Context, _ pgx.Tx, b *pgx.Batch) (answer, error) {
		b.Queue(insertIntent, i.ID, i.Amount, i.Currency, i.Status, i.PaymentMethod, description, i.Metadata, i.CreatedAt)
		s.emit(b, c, "payment_intent.created", i.object())
		if confirm {
			return s.attempt(b, c, &i, unattended), nil
		}
		return object(http.StatusOK, i.object()), nil
	}, nil
}

// unattended reads the parameters that say that no customer is there.
func (p *params) unattended() bool {
	offSession := p.word("off_session", "false", "true", "one_off", "recurring") != "false"
	return p.boolean("error_on_requires_action") || offSession
}

// confirmIntent attempts an intent. A declined one can be attempted again, but
// only with a payment method, for it has lost its own.
func (s *Sandbox) confirmIntent(c *call) (execution, error) {
	p := c.params
	method := p.method("payment_method")
	unattended := p.unattended()
	p.ignore("return_url", "use_stripe_sdk")
	if err := p.done(); err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx pgx.Tx, b *pgx.Batch) (answer, error) {
		i, err := lockIntent(ctx, tx, c.target, noIntentAt(c.target))
		if err != nil {
			return answer{}, err
		}
		switch i.Status {
		case statusRequiresConfirmation, statusRequiresAction:
		case statusRequiresMethod:
			if method == "" {
				return unexpected(i, "confirm", "Give it a payment_method first."), nil
			}
		default:
			return unexpected(i, "confirm", ""), nil
		}
		if method != "" {
			i.PaymentMethod = &method
		}
		return s.attempt(b, c, i, unattended), nil
	}, nil
}

// unexpected refuses what the intent's state does not allow, and shows it.
func unexpected(i *intent, verb, advice string) answer {
	e := invalid("payment_intent_unexpected_state", "",
		strings.TrimSpace(fmt.Sprintf("You cannot %s this PaymentIntent because it has a status of %s. %s", verb, i.Status, advice)))
	e.PaymentIntent = i.object()
	return e.answer()
}

const updateAttempted = `
update payment_intents
set status = $2,
    payment_method = $3,
    latest_charge = $4,
    last_payment_error = $5,
    settle_at = case when $2 = 'processing' then clock_timestamp() + $6::interval end
where id = $1`

const insertCapture = `
insert into captures (id, payment_intent, amount, currency)
values ($1, $2, $3, $4)`

// attempt charges the locked intent's payment method and queues all that
// follows from it.
func (s *Sandbox) attempt(b *pgx.Batch, c *call, i *intent, unattended bool) answer {
	charge := newID("ch_")
	status, failure := charged(*i.PaymentMethod, unattended)
	i.Status, i.LatestCharge, i.LastPaymentError = status, &charge, nil
	if failure != nil {
		failure.Charge = charge
		shown := *failure
		i.LastPaymentError, i.PaymentMethod = &shown, nil
	}
	b.Queue(updateAttempted, i.ID, i.Status, i.PaymentMethod, i.LatestCharge, i.LastPaymentError, s.options.ProcessingTime)
	if status == statusSucceeded {
		b.Queue(insertCapture, charge, i.ID, i.Amount, i.Currency)
	}
	s.emit(b, c, eventOf(status), i.object())
	if failure != nil {
		failure.PaymentIntent = i.object()
		return failure.answer()
	}
	return object(http.StatusOK, i.object())
}

// eventOf names the event that an attempt with this outcome causes.
func eventOf(status string) string {
	if status == statusRequiresMethod {
		return "payment_intent.payment_failed"
	}
	return "payment_intent." + status
}

const updateCanceled = `
update payment_intents
set status = 'canceled',
    cancellation_reason = nullif($2, ''),
    canceled_at = $3
where id = $1`

// cancelIntent seals an intent: nothing can be captured through it afterwards.
func (s *Sandbox) cancelIntent(c *call) (execution, error) {
	reason := c.params.word("cancellation_reason", "", "duplicate", "fraudulent", "requested_by_customer", "abandoned")
	if err := c.params.done(); err != nil {
		return nil, err
	}
	return func(ctx context.Context, tx pgx.Tx, b *pgx.Batch) (answer, error) {
		i, err := lockIntent(ctx, tx, c.target, noIntentAt(c.target))
		if err != nil {
			return answer{}, err
		}
		switch i.Status {
		case statusProcessing, statusSucceeded, statusCanceled:
			return unexpected(i, "cancel", ""), nil
		}
		now := s.options.Now()
		i.Status, i.CanceledAt = statusCanceled, &now
		if reason != "" {
			i.CancellationReason = &reason
		}
		b.Queue(updateCanceled, i.ID, reason, now)
		s.emit(b, c, "payment_intent.canceled", i.object())
		return object(http.StatusOK, i.object()), nil
	}, nil
}

const lockDue = `
where settle_at <= clock_timestamp()
order by settle_at
limit 100
for update skip locked`

const updateSettled = `
update payment_intents
set status = 'succeeded',
    settle_at = null
where id = $1`

// settle lets the intents succeed whose processing time is over. Any number
// may run at once: a locked intent is being settled by another.
func (s *Sandbox) settle(ctx context.Context) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it does nothing; else the connection goes
	due, err := intentsWhere(ctx, tx, lockDue)
	if err != nil || len(due) == 0 {
		return err
	}
	b := &pgx.Batch{}
	for _, i := range due {
		i.Status, i.SettleAt = statusSucceeded, nil
		b.Queue(updateSettled, i.ID)
		b.Queue(insertCapture, *i.LatestCharge, i.ID, i.Amount, i.Currency)
		s.emit(b, nil, "payment_intent.succeeded", i.object())
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("settle payment intents: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("settle payment intents: %w", err)
	}
	s.nudge()
	return nil
}

// settled reads intents after settling those of them that are due.
func (s *Sandbox) settled(ctx context.Context, condition string, args ...any) ([]*intent, error) {
	intents, err := intentsWhere(ctx, s.pool, condition, args...)
	if err != nil {
		return nil, err
	}
	for _, i := range intents {
		if i.Status == statusProcessing {
			if err := s.settle(ctx); err != nil {
				return nil, err
			}
			return intentsWhere(ctx, s.pool, condition, args...)
		}
	}
	return intents, nil
}
