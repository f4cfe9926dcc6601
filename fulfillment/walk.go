package fulfillment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

const (
	// rounds bounds how often one delivery goes on after a lost race for the
	// stream's next version.
	rounds = 10
	// longestPause is between a lost race and the next look, so that rivals part.
	longestPause = 10 * time.Millisecond
)

// again loads a charge's stream and lets decide work on it, once more from the
// start whenever another writer was faster. ErrNotFound if there is no charge.
//
// The message was committed with the event that it names. A stream that ends before
// this version is what a server shows that is behind, such as a standby: the message
// waits.
func again(ctx context.Context, r *Reader, charge string, version int, decide func(ledger.Stream) (inbox.Result, error)) (inbox.Result, error) {
	for round := 0; ; round++ {
		s, err := r.load(ctx, charge)
		if err != nil && (version == 0 || !errors.Is(err, ledger.ErrNotFound)) {
			return inbox.Complete, err
		}
		if s.Charge.Version < version {
			return inbox.Complete, &inbox.WaitError{Err: fmt.Errorf("stream %s is read up to version %d, the message names version %d", charge, s.Charge.Version, version)}
		}
		result, err := decide(s)
		if !ledger.IsConflict(err) {
			return result, err
		}
		if round == rounds {
			return inbox.Complete, tooManyRaces(err)
		}
		if err := pause(ctx, longestPause); err != nil {
			return inbox.Complete, err
		}
	}
}

// tooManyRaces is for a stream that grows faster than anybody here decides. That
// is nobody's mistake, so it counts no attempt. It wraps nothing, lest it be
// taken for one more race.
func tooManyRaces(last error) error {
	return &inbox.WaitError{Err: errors.New("the stream grows too fast: " + last.Error())}
}

// pause waits a random part of longest.
func pause(ctx context.Context, longest time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(rand.N(longest)): //nolint:gosec // jitter
		return nil
	}
}

// walk is one try to bring a charge and its refunds further.
type walk struct {
	*Fulfillment
	d            inbox.Delivery
	s            ledger.Stream
	aboutRefunds bool            // the message asks for a look at refunds beyond the pending ones
	intent       *stripe.Intent  // the provider's object, when this walk made it
	gone         []stripe.Refund // went back on their outcome, by the newest list
	result       inbox.Result    // Completed once Done rode in a commit
}

func cause(d inbox.Delivery) ledger.Cause {
	return ledger.Cause{
		CorrelationID: d.Metadata[outbox.MetadataCorrelationID],
		CausationID:   d.ID,
		Actor:         "worker",
	}
}

// announce queues the message about an outcome.
func announce(b *pgx.Batch, s ledger.Stream, e ledger.Recorded, d inbox.Delivery) error {
	payload, err := s.Seal(e)
	if err != nil {
		return err
	}
	metadata := map[string]string{
		outbox.MetadataCorrelationID: d.Metadata[outbox.MetadataCorrelationID],
		outbox.MetadataCausationID:   d.ID,
	}
	if trace := d.Metadata[outbox.MetadataTraceparent]; trace != "" {
		metadata[outbox.MetadataTraceparent] = trace
	}
	return outbox.Append(b, outbox.Message{
		Topic:       ledger.Outcomes,
		ID:          e.ID.String(),
		Type:        e.Type,
		OrderingKey: s.ID,
		Partition:   s.Charge.MerchantID,
		Payload:     payload,
		Metadata:    metadata,
	})
}
