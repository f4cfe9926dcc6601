package ledger

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
)

// Projector folds new events into the projections. Each worker runs one. One of them is
// active. The others stand by: now and then they read the checkpoint, and one of them
// becomes active when events wait and the checkpoint has not moved. This saves work only:
// of two projectors that fold the same events one is refused. A projector that starts is active
// until it sees another one.
type Projector struct {
	DB *postgres.DB
	// Bell, where set, receives when events were committed. It is a hint: a lost one costs
	// a poll of five seconds. Without it the projector polls every 50 ms.
	Bell <-chan struct{}
	Log  *slog.Logger

	// last is the checkpoint as this projector has left it, or has seen it while events
	// waited.
	last    checkpoint
	started bool // last is set
}

const (
	batchingDelay     = 250 * time.Millisecond // after a page, so that a charge is not folded after each of its events
	batchingDelayLong = 2 * batchingDelay      // after a large page: under load a charge is folded once or twice
	largePage         = 250                    // events
	standbyPoll       = 3 * batchingDelayLong  // longer than the active projector pauses; jitter adds up to half of it
	fastPoll          = 50 * time.Millisecond  // without Bell, and while events cannot be folded yet
	slowPoll          = 5 * time.Second        // with it
)

// Run folds until ctx ends, and completes the commit in flight. It logs the first of
// several failures and retries until it succeeds. A charge with an event that this program
// cannot read is set aside, see RetrySetAside: its row in the list does not change until then.
func (p *Projector) Run(ctx context.Context) {
	loop.Run(ctx, p.Log, "projecting failed, it is retried until it succeeds", p.step)
}

// step waits for events, or folds a page of them, and returns the pause before the next
// step.
func (p *Projector) step(ctx context.Context) (time.Duration, error) {
	at, err := readLive(ctx, p.DB)
	if err == nil && !p.started {
		p.started, p.last = true, at.checkpoint
	}
	switch {
	case err != nil:
		return 0, err
	case !at.Behind:
		longest := fastPoll
		if p.Bell != nil {
			longest = slowPoll
		}
		loop.Pause(ctx, longest, p.Bell)
		return 0, nil
	case !at.Waiting:
		return fastPoll, nil
	case at.checkpoint != p.last: // another projector is active, or none was
		p.last = at.checkpoint
		return standbyPoll + rand.N(standbyPoll/2), nil //nolint:gosec // jitter
	}
	folded, err := fold(ctx, p.DB, at.checkpoint, end())
	switch {
	case isFolded(err):
		p.last = checkpoint{}
		return standbyPoll + rand.N(standbyPoll/2), nil //nolint:gosec // jitter
	case err != nil:
		return 0, err
	}
	p.last = folded.until
	switch {
	case folded.full:
		return 0, nil
	case len(folded.streams) >= largePage:
		return batchingDelayLong, nil
	}
	return batchingDelay, nil
}
