package ledger

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/payonce/payonce/internal/postgres"
)

// Projector folds new events into the projections. Each worker runs one. One of them is
// active. The others stand by: now and then they read the checkpoint, and one of them
// becomes active when events wait and the checkpoint has not moved. This saves work only:
// of two projectors that fold the same events one is refused.
type Projector struct {
	DB *postgres.DB
	// Bell, where set, receives when events were committed. It is a hint: a lost one costs
	// a slow poll of a second.
	Bell <-chan struct{}
	// Listening reports whether Bell receives for the commits of all processes. While it
	// does not, the projector polls every 50 ms. Where nil, it does not.
	Listening func() bool
	Log       *slog.Logger
}

const (
	gather        = 250 * time.Millisecond // after a page, so that a charge is not folded after each of its events
	gatherLong    = 2 * gather             // after a large page: under load a charge is folded once or twice
	largePage     = 250                    // events
	standbyPoll   = 3 * gatherLong         // longer than the active projector pauses; jitter adds up to half of it
	firstPoll     = 20 * time.Millisecond  // doubles: events may be committed that cannot be read yet
	fastPoll      = 50 * time.Millisecond  // the longest while the bell is not heard
	slowPoll      = time.Second            // the longest while it is
	shortestRetry = 100 * time.Millisecond // after a failure; doubles
	longestRetry  = 5 * time.Second
)

// Run folds until ctx ends, and completes the commit in flight. It logs the first of
// several failures and retries until it succeeds. It skips nothing: an event that this
// program does not know is left to a newer one, and until then the list does not change.
func (p *Projector) Run(ctx context.Context) {
	r := &projecting{Projector: p}
	for ctx.Err() == nil {
		pause, bell := r.step(ctx), r.Bell
		if r.idle == 0 {
			bell = nil // events gather, or another projector is active
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		case <-bell:
			r.idle = 0
		}
	}
}

// projecting is the state of Run.
type projecting struct {
	*Projector

	active   bool
	passed   checkpoint // at which a standby saw events wait and left them
	idle     int        // steps in a row that found nothing to fold
	failures int        // in a row
}

// step folds at most one page, and returns the pause before the next step.
func (r *projecting) step(ctx context.Context) time.Duration {
	p, err := r.fold(ctx)
	switch {
	case isFolded(err):
		r.active, r.passed, r.failures = false, checkpoint{}, 0
	case err != nil:
		if ctx.Err() == nil && r.failures == 0 {
			r.Log.WarnContext(ctx, "projecting failed, it is retried until it succeeds", "error", err)
		}
		r.failures++
		return min(shortestRetry<<min(r.failures-1, 10), longestRetry)
	case r.failures > 0:
		r.Log.InfoContext(ctx, "projecting works again", "failures", r.failures)
		r.failures = 0
	}
	if !r.active {
		r.idle = 0
		return standbyPoll + rand.N(standbyPoll/2)
	}
	switch events := len(p.streams); {
	case p.full:
		return 0
	case events >= largePage:
		r.idle = 0
		return gatherLong
	case events > 0:
		r.idle = 0
		return gather
	}
	r.idle++
	longest := fastPoll
	if r.Listening != nil && r.Listening() {
		longest = slowPoll
	}
	return min(firstPoll<<min(r.idle-1, 10), longest)
}

// fold folds a page if this projector is active or becomes active.
func (r *projecting) fold(ctx context.Context) (page, error) {
	at, err := readLive(ctx, r.DB)
	switch {
	case err != nil:
		return page{}, err
	case !at.Waiting:
		r.passed = checkpoint{}
		return page{}, nil
	case !r.active && at.checkpoint != r.passed:
		r.passed = at.checkpoint
		return page{}, nil
	}
	r.active = true
	return fold(ctx, r.DB, at.checkpoint, end())
}
