package fulfillment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
)

// payment takes the money. The provider's payment intent takes it at most once, whatever is sent to
// it. So that every worker uses the same intent, its id is committed before any money moves. Before a
// charge fails, the step cancels its intent: a declined intent could still be confirmed by a request in flight.
type payment struct {
	provider Provider
	now      time.Time      // when the delivery was claimed, in database time
	timeout  time.Duration  // of the customer's action
	intent   *stripe.Intent // the last answer in this delivery; nil where the state is not known
}

// run creates the intent, or brings it to its end.
//
// If we die here: the intent's id is recorded. The next worker retrieves the intent, which knows whether the money was
// taken, before it sends anything. Test: TestWalk in e2e.
func (p *payment) run(ctx context.Context, s ledger.Stream) ([]domain.Event, error) {
	if !s.Charge.PaymentStarted() {
		return p.start(ctx, s)
	}
	if p.intent == nil || p.intent.ID != s.Charge.PaymentIntent { // or another one was recorded
		found, err := p.provider.RetrieveIntent(ctx, s.Charge.PaymentIntent)
		if err != nil {
			return callFailed(ctx, err, nil)
		}
		p.intent = &found
	}
	if !isConfirmable(*p.intent) {
		return p.decideByIntent(ctx, s)
	}
	key := s.At(s.Charge.AttemptVersion).ID.String() // the same for every worker
	confirmed, err := p.provider.ConfirmIntent(ctx, key, p.intent.ID, s.Charge.ReturnURL)
	p.intent = nil // unknown after a failed call
	if err == nil {
		p.intent = &confirmed
		return p.decideByIntent(ctx, s)
	}
	why := refusal(err, "the provider refused the payment")
	if why == nil {
		return callFailed(ctx, err, failedAt(s.Charge, domain.StageConfirm))
	}
	if e, _ := errors.AsType[*stripe.Error](err); e.Kind == stripe.Rejected {
		// Another worker has confirmed the intent, or it cannot be confirmed: look.
		found, err := p.provider.RetrieveIntent(ctx, s.Charge.PaymentIntent)
		if err != nil {
			return callFailed(ctx, err, nil)
		}
		p.intent = &found
		if !isConfirmable(found) {
			return p.decideByIntent(ctx, s)
		}
	}
	return p.cancelAndFail(ctx, s, *why)
}

// start creates the intent and records it. What it sends follows from the merchant, the client's
// key and the request, also in a database that has lost the charge. If the lost charge sent other parameters
// under the key, this one fails: the lost one may have paid, unknown to the ledger.
//
// If we die here: no intent is recorded; the next worker sends the same key and receives the same intent. If the
// provider has forgotten the key, the first intent stays an orphan that no worker confirms. Test: TestWalk in e2e.
func (p *payment) start(ctx context.Context, s ledger.Stream) ([]domain.Event, error) {
	c := s.Charge
	intent, err := p.provider.CreateIntent(ctx, c.CreationKey(), stripe.CreateParams{
		Reference: c.Reference, ChargeID: c.ID, Amount: c.Amount, Currency: string(c.Currency),
		PaymentMethod: c.PaymentMethod, Customer: c.Customer, Description: c.Description, Redirects: c.ReturnURL != "",
	})
	if err != nil {
		answer, _ := errors.AsType[*stripe.Error](err)
		why := refusal(err, "the provider refused the payment")
		switch {
		case why != nil && answer.Kind == stripe.Declined && answer.Intent.ID != "":
			intent = answer.Intent // it exists, so it is recorded; run ends it
		case why != nil: // the provider will not make this payment, and there is no intent to cancel
			return c.Fail(*why), nil
		case answer != nil && answer.Kind == stripe.Failed && answer.StatusCode == stripe.OtherParameters && c.CreateFailures == 0:
			return c.Fail(keyReusedFailure), nil
		default:
			return callFailed(ctx, err, failedAt(c, domain.StageCreate))
		}
	}
	p.intent = &intent
	return []domain.Event{domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: intent.ID}}, nil
}

// keyReusedFailure is why a charge fails whose first key belongs to another request.
var keyReusedFailure = domain.Failure{Code: domain.ProviderRefused, Message: "this key was used for another payment"}

// isConfirmable reports whether the provider has not tried to take the money yet.
func isConfirmable(i stripe.Intent) bool {
	return i.Status == stripe.RequiresConfirmation || (i.Status == stripe.RequiresPaymentMethod && !i.Attempted)
}

// decideByIntent decides by the state of the intent.
func (p *payment) decideByIntent(ctx context.Context, s ledger.Stream) ([]domain.Event, error) {
	switch i := *p.intent; i.Status {
	case stripe.Succeeded:
		if i.Reference != s.Charge.Reference || i.AmountReceived != i.Amount {
			return nil, &inbox.DeadLetterError{Err: fmt.Errorf("payment intent %s took %d of %d for %q: %w",
				i.ID, i.AmountReceived, i.Amount, i.Reference, domain.ErrMismatch)}
		}
		// Another amount than the charge's is a dead letter (record).
		return s.Charge.Capture(i.ID, domain.Money{Amount: i.Amount, Currency: domain.Currency(i.Currency)}), nil
	case stripe.Canceled: // by this step, in the dashboard, or by the provider
		return s.Charge.Fail(declineOf(i)), nil
	case stripe.RequiresAction:
		return p.requireAction(ctx, s)
	case stripe.RequiresPaymentMethod:
		if i.Decline != nil && i.Decline.OfTestKey() {
			return nil, &inbox.WaitError{NeedsOperator: true, Err: fmt.Errorf("payment intent %s: %s", i.ID, i.Decline)}
		}
		return p.cancelAndFail(ctx, s, declineOf(i))
	case stripe.Processing:
		return nil, processingWait(p.now, s, s.Head(), errors.New("the provider is processing the payment"))
	default:
		return nil, &inbox.DeadLetterError{Err: fmt.Errorf("payment intent %s is %s: payonce does not know what to do with it", i.ID, i.Status)}
	}
}

// requireAction records that the provider waits for the customer, and then waits too: until the provider's event, the
// next read or a deadline. A charge whose merchant cannot send the customer to the provider's page is declined.
//
// If we die here: nothing is recorded, or the action with its deadline. The next worker retrieves the intent, which
// says if the customer has acted. Test: TestDecides/Action/a_worker_that_dies_after_the_confirmation_is_taken_over.
func (p *payment) requireAction(ctx context.Context, s ledger.Stream) ([]domain.Event, error) {
	switch c := s.Charge; {
	case c.ReturnURL == "" || p.intent.RedirectURL == "":
		return p.cancelAndFail(ctx, s, declineOf(*p.intent))
	case c.Action == nil:
		until := p.now.Add(p.timeout).UTC().Truncate(time.Millisecond)
		return []domain.Event{domain.PaymentActionRequired{URL: p.intent.RedirectURL, ExpiresAt: until}}, nil
	}
	return nil, processingWait(p.now, s, s.Head(), errors.New("the payment waits for the customer"))
}

// cancelCharge fails a charge that the merchant wants canceled, or whose deadline has passed,
// unless the money was taken.
//
// A request to cancel takes the stream's next version, so the commit of a run in progress is refused, and cancelCharge
// is what it does next. A deadline takes no version, so a run that began before it may still capture: the provider
// decides which was first. A recorded intent is canceled at the provider before the charge fails: the provider refuses
// confirmations in flight. An intent that was created but not recorded is never confirmed for this charge.
//
// If we die here: the request or the deadline is in the stream; the next worker cancels the intent, or finds it canceled, and commits
// the failure. Test: TestDecides/Cancel/a_holder_that_dies_between_cancel_and_commit_is_taken_over.
func (p *payment) cancelCharge(ctx context.Context, s ledger.Stream) ([]domain.Event, error) {
	why := *s.Charge.Cancellation(p.now)
	if !s.Charge.PaymentStarted() {
		return s.Charge.Fail(why), nil
	}
	return p.cancelAndFail(ctx, s, why)
}

// cancelAndFail cancels the intent, so that the charge may fail as failing says. If the provider
// took the money first, or is about to, it records that instead.
//
// If we die here: nothing is recorded. If the intent is as it was, the next worker starts anew; if it is canceled, the
// charge fails for its own reason to cancel, else for the intent's decline, else as provider_refused.
// Test: TestWalk in e2e.
func (p *payment) cancelAndFail(ctx context.Context, s ledger.Stream, failing domain.Failure) ([]domain.Event, error) {
	p.intent = nil
	canceled, err := p.provider.CancelIntent(ctx, s.Charge.PaymentIntent)
	if err != nil {
		return callFailed(ctx, err, nil)
	}
	p.intent = &canceled
	switch canceled.Status {
	case stripe.Canceled:
		return s.Charge.Fail(failing), nil
	case stripe.Succeeded, stripe.Processing:
		return p.decideByIntent(ctx, s)
	default: // the charge does not fail before its intent is canceled
		return nil, &inbox.WaitError{Err: fmt.Errorf("payment intent %s was to be canceled and is %s", canceled.ID, canceled.Status)}
	}
}

// failedAt returns the event that records an error of the provider's own; nil if the charge has used its last key.
func failedAt(c domain.Charge, stage domain.Stage) func(*stripe.Error) domain.Event {
	return func(e *stripe.Error) domain.Event {
		if c.IsLastKey(stage) {
			return nil
		}
		return domain.PaymentAttemptFailed{Stage: stage, StatusCode: e.StatusCode, RequestID: e.RequestID}
	}
}

// declineOf is the reason that the intent itself holds.
func declineOf(i stripe.Intent) domain.Failure {
	switch {
	case i.Status == stripe.RequiresAction:
		return domain.Failure{Code: domain.AuthenticationRequired, Message: "the payment needs the customer's authentication"}
	case i.Decline != nil:
		return failure(*i.Decline)
	}
	return domain.Failure{Code: domain.ProviderRefused, Message: "the provider ended the payment without a reason"}
}

func failure(d stripe.Decline) domain.Failure {
	f := domain.Failure{Code: domain.CardDeclined, Message: cmp.Or(d.Message, "the card was declined"), DeclineCode: d.DeclineCode}
	if d.AuthenticationRequired() {
		f.Code = domain.AuthenticationRequired
	}
	if f.DeclineCode == "" && d.Code != string(f.Code) {
		f.DeclineCode = d.Code
	}
	return f
}
