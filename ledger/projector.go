package ledger

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/payonce/payonce/internal/postgres"
)

// Projector keeps the projections up with the ledger. Every worker runs one. One
// of them is at work; the others look now and then whether it still is, and one of
// them takes over when events wait and the checkpoint stands still. That is
// courtesy: what holds is that of two who fold the same events one is refused.
type Projector struct {
	DB *postgres.DB
	// Bell, where set, is received from when events were committed, by this process or
	// one that rings for all of its commits. A lost ring costs a slow poll of a second.
	Bell <-chan struct{}
	// Listening tells whether Bell hears all processes. While it does not, the ledger is
	// looked at every 50 ms; nil: it does not.
	Listening func() bool
	Log       *slog.Logger
}

const (
	gather        = 250 * time.Millisecond // after a page: a charge is not folded after each event
	gatherLong    = 2 * gather             // after a page of many: under load it is folded once or twice, and the list is later by as much
	manyEvents    = 250                    // a thousand a second: some 170 charges
	standby       = 3 * gatherLong         // between looks of the others: the one at work folds meanwhile; chance adds up to half of it
	firstLook     = 20 * time.Millisecond  // after one that found nothing: events may be committed that cannot be read yet
	fastPoll      = 50 * time.Millisecond  // while nobody rings
	slowPoll      = time.Second            // while somebody does
	shortestPause = 100 * time.Millisecond // after a failure
	longestPause  = 5 * time.Second
)

// Run folds until ctx ends. What is being committed then is waited for. A failure
// is logged and tried again: nothing is skipped, so an event that this program
// does not understand is left to a newer one, and until then the list stands still.
func (p *Projector) Run(ctx context.Context) {
	r := &turn{Projector: p}
	for {
		pause := time.NewTimer(r.take(ctx))
		bell := r.Bell
		if r.idle == 0 {
			bell = nil // events gather, or somebody else is at work
		}
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		case <-bell:
			pause.Stop()
			r.idle = 0
		}
	}
}

// turn is the state of one Run.
type turn struct {
	*Projector
	working bool       // this one is the one at work
	stood   checkpoint // where the events waited when it last looked, while not at work
	idle    int        // looks in a row that found nothing
	failed  int        // failures in a row
}

// take looks once, folds what it may, and says after which pause to look again.
func (r *turn) take(ctx context.Context) time.Duration {
	folded, err := r.fold(ctx)
	switch {
	case err != nil && isOutrun(err):
		r.working, r.stood, r.failed = false, checkpoint{}, 0
	case err != nil:
		if ctx.Err() == nil && r.failed == 0 {
			r.Log.WarnContext(ctx, "projecting failed, it is tried again until it succeeds", "error", err)
		}
		r.failed++
		return min(shortestPause<<min(r.failed-1, 10), longestPause)
	case r.failed > 0:
		r.Log.InfoContext(ctx, "projecting goes on", "failures", r.failed)
		r.failed = 0
	}
	switch {
	case !r.working:
		r.idle = 0
		return standby + rand.N(standby/2)
	case folded.full:
		return 0
	case folded.events > 0:
		r.idle = 0
		return gatherAfter(folded.events)
	}
	r.idle++
	longest := fastPoll
	if r.Listening != nil && r.Listening() {
		longest = slowPoll
	}
	return min(firstLook<<min(r.idle-1, 10), longest)
}

func (r *turn) fold(ctx context.Context) (page, error) {
	at, waiting, err := look(ctx, r.DB)
	if err != nil {
		return page{}, err
	}
	if !waiting {
		r.stood = checkpoint{}
		return page{}, nil
	}
	if !r.working && at != r.stood {
		r.stood = at
		return page{}, nil
	}
	r.working = true
	return project(ctx, r.DB, at)
}

// gatherAfter is how long events gather behind a page of so many.
func gatherAfter(events int) time.Duration {
	if events < manyEvents {
		return gather
	}
	return gatherLong
}
