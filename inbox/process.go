package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"
)

// process runs the handler and ends the claim accordingly.
func (r *run) process(ctx context.Context, c claimed) End {
	ctx, attempted := r.Observer.attempting(ctx, c.Delivery)
	end := r.end(ctx, c)
	attempted(end)
	r.Observer.ended(end)
	return end
}

func (r *run) end(ctx context.Context, c claimed) End {
	d := c.Delivery
	log := func() *slog.Logger { // of a message that simply ends nothing is said
		return r.Log.With("receiver", r.Receiver, "message_id", d.ID, "ordering_key", d.OrderingKey, "attempt", d.Attempt)
	}
	settled := func(end End, queue func(*pgx.Batch)) End {
		if r.settle(ctx, log, queue) {
			return end
		}
		return EndLeft
	}
	if c.deaths >= r.Policy.maxDeaths() {
		// They died before they could say why.
		end := settled(EndParked, func(b *pgx.Batch) { parked(b, d, fmt.Sprintf("%d holders died or went silent", c.deaths)) })
		if end == EndParked {
			log().ErrorContext(ctx, "message parked", "reason", "its holders died", "deaths", c.deaths)
		}
		return end
	}
	if c.suspect() {
		log().WarnContext(ctx, "message suspected: its holders died or went silent", "deaths", c.deaths)
	}

	result, err := r.guard(ctx, d)
	var waiting *WaitError
	var parking *ParkError
	switch {
	case err == nil && result == Completed:
		return EndDone
	case err == nil:
		return settled(EndDone, func(b *pgx.Batch) { Done(b, d) })
	case errors.Is(context.Cause(ctx), errLeaseLost) || IsLost(err):
		log().WarnContext(ctx, "lease lost, the new holder goes on", "error", err)
		return EndLost
	case errors.Is(context.Cause(ctx), errDraining):
		end := settled(EndReleased, func(b *pgx.Batch) { released(b, d) })
		if end == EndReleased {
			log().InfoContext(ctx, "message released")
		}
		return end
	case errors.As(err, &parking):
		end := settled(EndParked, func(b *pgx.Batch) { parked(b, d, err.Error()) })
		if end == EndParked {
			log().ErrorContext(ctx, "message parked", "reason", err)
		}
		return end
	case errors.As(err, &waiting):
		end := settled(EndWaiting, func(b *pgx.Batch) { waits(b, d, r.Policy, *waiting, err.Error()) })
		if end == EndWaiting {
			log().InfoContext(ctx, "message waits", "reason", err)
		}
		return end
	case isStoreAway(err):
		log().WarnContext(ctx, "message waits for the store", "error", err)
		return settled(EndWaiting, func(b *pgx.Batch) { waits(b, d, r.Policy, WaitError{}, err.Error()) })
	default:
		log().WarnContext(ctx, "attempt failed", "error", err)
		return settled(EndFailed, func(b *pgx.Batch) { failed(b, d, r.Policy, err.Error()) })
	}
}

// guard turns a panic of the handler into an error.
func (r *run) guard(ctx context.Context, d Delivery) (result Result, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	defer r.Observer.handling()()
	return r.Handle(ctx, d)
}

// settle commits the end of a claim, and retries while the database is unavailable
// or its refusal is transient: a handler that returned must not look like one that
// died. Each statement may be repeated, since it checks the fence. When the lease is
// lost or the program stops, settle returns false: the lease expires and the message
// is claimed again.
func (r *run) settle(ctx context.Context, log func() *slog.Logger, queue func(*pgx.Batch)) bool {
	for first := true; ; first = false {
		b := &pgx.Batch{}
		queue(b)
		err := r.DB.Commit(ctx, b)
		if err == nil {
			return true
		}
		if first {
			log().WarnContext(ctx, "claim not ended", "error", err)
		}
		if !isStoreAway(err) && !isTimeout(err) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(afterFailure):
		}
	}
}
