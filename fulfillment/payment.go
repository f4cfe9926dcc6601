package fulfillment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/stripe"
)

// The provider's payment intent is the anchor of a payment: it can take the
// money at most once, whatever is sent to it. So it is made first and its id
// committed before any money moves; afterwards, whoever does not know how the
// payment stands asks the intent. And before a charge fails, its intent is
// canceled: a declined intent could still be confirmed by a request that is
// under way somewhere.

// startPayment makes the intent and records it.
//
// If we die here: before the provider answered, or before the commit, the step
// runs again with the same key and gets the same intent; should the provider
// have forgotten the key, the first intent stays an orphan that nobody confirms.
// Test: e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
func (w *walk) startPayment(ctx context.Context) error {
	c := w.s.Charge
	if c.Step(domain.Payment) != domain.StepPending || c.Started() {
		return nil
	}
	intent, err := w.Provider.CreateIntent(ctx, w.attemptKey(), stripe.CreateParams{
		Reference:     c.ID,
		Amount:        c.Amount.Amount,
		Currency:      string(c.Amount.Currency),
		PaymentMethod: c.PaymentMethod,
		Description:   c.Description,
	})
	var declined *stripe.DeclinedError
	var rejected *stripe.RejectedError
	switch {
	case errors.As(err, &declined) && declined.Intent.ID != "":
		intent = declined.Intent // it was made, so it is recorded; the next step ends it
	case errors.As(err, &declined):
		return w.commit(ctx, domain.DeclinePayment{Failure: failure(declined.Decline)}, giveBack)
	case errors.As(err, &rejected):
		// The provider will not make this payment, and there is no intent to cancel.
		return w.commit(ctx, domain.DeclinePayment{Failure: refusal(rejected)}, giveBack)
	case err != nil:
		return w.outside(ctx, err, failedAt(domain.StageCreate))
	}
	w.intent = &intent
	return w.commit(ctx, domain.StartPayment{Provider: domain.Provider, PaymentIntent: intent.ID})
}

// lookAgain is when to look again at what the provider is still working on, at
// the earliest. Its webhook wakes the message before.
const lookAgain = time.Second

// underWay is for what the provider itself says it is still working on. A bank may
// take weeks, which is no outage, so the message is never parked for it.
func underWay(err error) error {
	return &inbox.WaitError{AtLeast: lookAgain, Patient: true, Err: err}
}

// looks bounds how often one delivery asks and answers the provider.
const looks = 4

// confirmPayment brings the intent to its end and records it.
//
// If we die here: the intent knows whether the money was taken. Whoever takes
// over asks it before anything is sent.
// Test: e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
func (w *walk) confirmPayment(ctx context.Context) error {
	if w.s.Charge.Step(domain.Payment) != domain.StepPending {
		return nil
	}
	intent := w.intent
	for range looks {
		if intent == nil || intent.ID != w.s.Charge.PaymentIntent {
			found, err := w.Provider.RetrieveIntent(ctx, w.s.Charge.PaymentIntent)
			if err != nil {
				return w.outside(ctx, err, nil)
			}
			intent = &found
		}
		if !confirmable(*intent) {
			return w.settle(ctx, *intent)
		}
		confirmed, err := w.Provider.ConfirmIntent(ctx, w.attemptKey(), intent.ID)
		var declined *stripe.DeclinedError
		var rejected *stripe.RejectedError
		switch {
		case err == nil:
			intent = &confirmed
		case errors.As(err, &declined):
			return w.decline(ctx, failure(declined.Decline))
		case errors.As(err, &rejected):
			return w.refused(ctx, rejected)
		default:
			return w.outside(ctx, err, failedAt(domain.StageConfirm))
		}
	}
	return w.settle(ctx, *intent)
}

// confirmable tells whether nobody has tried to take the money yet.
func confirmable(i stripe.Intent) bool {
	return i.Status == stripe.RequiresConfirmation || (i.Status == stripe.RequiresPaymentMethod && !i.Attempted)
}

// refused is for a confirmation that the provider did not carry out. Either the
// intent has come further by somebody else's confirmation, or it never will.
func (w *walk) refused(ctx context.Context, why *stripe.RejectedError) error {
	intent, err := w.Provider.RetrieveIntent(ctx, w.s.Charge.PaymentIntent)
	if err != nil {
		return w.outside(ctx, err, nil)
	}
	if confirmable(intent) {
		return w.decline(ctx, refusal(why))
	}
	return w.settle(ctx, intent)
}

// settle records what the intent says.
func (w *walk) settle(ctx context.Context, i stripe.Intent) error {
	switch i.Status {
	case stripe.Succeeded:
		return w.capture(ctx, i)
	case stripe.RequiresPaymentMethod:
		return w.decline(ctx, declineOf(i))
	case stripe.RequiresAction:
		return w.decline(ctx, domain.Failure{
			Code: domain.AuthenticationRequired, Message: "the payment needs the customer's authentication",
		})
	case stripe.Canceled:
		// We cancel only what we are about to fail.
		return w.commit(ctx, domain.DeclinePayment{Failure: declineOf(i)}, giveBack)
	case stripe.Processing:
		return underWay(errors.New("the provider is processing the payment"))
	default:
		return &inbox.ParkError{Err: fmt.Errorf("payment intent %s is %s: payonce does not know what to do with it", i.ID, i.Status)}
	}
}

// capture records that the money was taken. The commit is the charge's outcome:
// events, postings, sale, message and the end of the delivery.
func (w *walk) capture(ctx context.Context, i stripe.Intent) error {
	if i.Reference != w.s.ID || i.AmountReceived != i.Amount {
		return &inbox.ParkError{Err: fmt.Errorf("payment intent %s took %d of %d for %q: %w",
			i.ID, i.AmountReceived, i.Amount, i.Reference, domain.ErrMismatch)}
	}
	return w.commit(ctx, domain.CapturePayment{
		Provider:      domain.Provider,
		PaymentIntent: i.ID,
		Amount:        domain.Money{Amount: i.Amount, Currency: domain.Currency(i.Currency)},
	}, sell)
}

// decline cancels the intent and then fails the charge. If the provider says
// that the money was taken after all, the charge is captured instead.
//
// If we die here: before the cancel nothing has changed; between cancel and
// commit the next holder finds a canceled intent and commits the failure.
// Test: e2e TestWorker/a_worker_killed_at_any_step_is_taken_over.
func (w *walk) decline(ctx context.Context, why domain.Failure) error {
	intent, err := w.Provider.CancelIntent(ctx, w.s.Charge.PaymentIntent)
	if err != nil {
		return w.outside(ctx, err, nil)
	}
	switch intent.Status {
	case stripe.Canceled:
		return w.commit(ctx, domain.DeclinePayment{Failure: why}, giveBack)
	case stripe.Succeeded, stripe.Processing:
		return w.settle(ctx, intent)
	default:
		return stillOpen(intent)
	}
}

// failedAt is the command that records an error of the provider's own.
func failedAt(stage domain.Stage) func(*stripe.FailedError) domain.Command {
	return func(e *stripe.FailedError) domain.Command {
		return domain.FailAttempt{Stage: stage, StatusCode: e.StatusCode, RequestID: e.RequestID}
	}
}

// outside says what an error of a provider call means. An answer that is an
// error of the provider's own may be saved under the call's key, so it is
// recorded, which opens the next key; everything else keeps the key. Either way
// the message waits, and the next holder begins by asking how things stand.
// attempt is nil for calls that carry no key of ours.
func (w *walk) outside(ctx context.Context, err error, attempt func(*stripe.FailedError) domain.Command) error {
	var broken *stripe.FailedError
	var unavailable *stripe.UnavailableError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &broken):
		if attempt != nil {
			if err := w.commit(ctx, attempt(broken)); err != nil {
				return err
			}
		}
		return &inbox.WaitError{Err: err}
	case errors.As(err, &unavailable):
		return &inbox.WaitError{AtLeast: spread(unavailable.RetryAfter), Err: err}
	default:
		return fmt.Errorf("call the provider: %w", err)
	}
}

// spread lengthens what the provider asked for by up to a quarter, so that not all
// that it turned away come back at one moment.
func spread(asked time.Duration) time.Duration {
	return asked + rand.N(asked/4+1) //nolint:gosec // jitter
}

// attemptKey is the Idempotency-Key of the attempt under way: the id of the
// event that opened it, the same for every holder.
func (w *walk) attemptKey() string { return w.s.At(w.s.Charge.AttemptVersion).ID.String() }

// declineOf is the reason that an intent itself remembers.
func declineOf(i stripe.Intent) domain.Failure {
	if i.Decline != nil {
		return failure(*i.Decline)
	}
	return domain.Failure{Code: domain.ProviderRefused, Message: "the provider ended the payment without a reason"}
}

func failure(d stripe.Decline) domain.Failure {
	f := domain.Failure{Code: domain.CardDeclined, Message: d.Message, DeclineCode: d.DeclineCode}
	if d.AuthenticationRequired() {
		f.Code = domain.AuthenticationRequired
	}
	if f.DeclineCode == "" && d.Code != string(f.Code) {
		f.DeclineCode = d.Code
	}
	if f.Message == "" {
		f.Message = "the card was declined"
	}
	return f
}

func refusal(r *stripe.RejectedError) domain.Failure {
	f := domain.Failure{Code: domain.ProviderRefused, Message: r.Message}
	if f.Message == "" {
		f.Message = "the provider refused the payment"
	}
	return f
}
