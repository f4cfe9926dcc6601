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

const (
	// clockSkew is more than the clocks of the database and of the provider differ. If they
	// differ by more, the list lacks the intent.
	clockSkew = 5 * time.Minute

	// searchLag is how long the provider's search may not show a new intent.
	searchLag = time.Hour
)

// find looks for an intent of the charge, if there may be one that is not recorded:
//
//   - The key of the last attempt belongs to other parameters. A program of another version,
//     or a charge that the database has lost, has sent them. The next key is used only when
//     the list and, after its lag, the search have no intent.
//   - The database has lost charges. The search finds what is older than the provider's keys;
//     of what is younger, the key of the creation leads to the intent.
func (p *payment) find(ctx context.Context, s ledger.Stream) error {
	opened := s.At(s.Charge.AttemptVersion)
	last, failed := opened.Event.(domain.PaymentAttemptFailed)
	others := failed && last.StatusCode == stripe.OtherParameters
	if others {
		for intent, err := range p.provider.Intents(ctx, s.At(1).RecordedAt.Add(-clockSkew)) {
			if err != nil {
				return err
			}
			p.prefer(s, intent)
		}
	}
	if s.Charge.Reference == "" || p.intent != nil {
		return p.checkFound(s)
	}
	recovered, err := p.recovered(ctx)
	if err != nil || !recovered && !others {
		return err
	}
	found, err := p.provider.SearchIntents(ctx, s.Charge.Reference)
	for _, intent := range found {
		if intent, err = p.provider.RetrieveIntent(ctx, intent.ID); err != nil { // the search shows an earlier state
			break
		}
		p.prefer(s, intent)
	}
	if err == nil && p.intent == nil && others && p.now.Before(opened.RecordedAt.Add(searchLag)) {
		err = &inbox.WaitError{Err: errors.New("the key belongs to other parameters, and the provider's search may not show their payment intent yet")}
	}
	return cmp.Or(err, p.checkFound(s))
}

// prefer takes an intent of the charge: of several the one that has moved money or is about to,
// and a canceled one last.
func (p *payment) prefer(s ledger.Stream, intent stripe.Intent) {
	if intent.Reference == reference(s.Charge) && (p.intent == nil || rank(intent) > rank(*p.intent)) {
		p.intent = &intent
	}
}

func rank(i stripe.Intent) int {
	switch i.Status {
	case stripe.Succeeded, stripe.Processing:
		return 2
	case stripe.Canceled:
		return 0
	default:
		return 1
	}
}

// checkFound refuses an intent of another amount: the key was used for another request.
func (p *payment) checkFound(s ledger.Stream) error {
	c := s.Charge
	if p.intent == nil || p.intent.Amount == c.Amount.Amount && p.intent.Currency == string(c.Amount.Currency) {
		return nil
	}
	return &inbox.DeadLetterError{Err: fmt.Errorf("payment intent %s of the same key is about %d %s: %w",
		p.intent.ID, p.intent.Amount, p.intent.Currency, domain.ErrMismatch)}
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
