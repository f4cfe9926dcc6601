package inbox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/loop"
)

// process runs the handler, commits the end of the claim, and frees the slot. It wakes the loop if a message may be due
// that waited for this end or for the slot.
func (p *Processor) process(ctx context.Context, d *Delivery) {
	end, ended := EndNotStored, func(End) {} // if the handler ends its goroutine
	defer func() {
		p.slots.end(d)
		if end != EndDone || d.behind || d.missed != p.slots.missed.Load() {
			loop.Ring(p.woken)
		}
	}()
	if p.OnAttempt != nil {
		ctx, ended = p.OnAttempt(ctx, d)
	}
	own := *d // a copy: the handler may change it
	err := context.Cause(ctx)
	if err == nil {
		err = loop.Safely(func() error { return p.Handle(ctx, &own) })
	}
	e := p.endOf(ctx, d, err)
	end = e.end
	log := p.Log.With("receiver", p.Receiver, "message_id", d.ID, "ordering_key", d.OrderingKey, "attempt", d.Attempt)
	if end != EndLost && (err != nil || !own.endedByHandler) {
		end = p.commitEnd(ctx, log, d, e)
	}
	if end != EndDone && end != EndNotStored {
		level := map[End]slog.Level{EndFailed: slog.LevelWarn, EndLost: slog.LevelWarn, EndBlocked: slog.LevelError, EndDeadLetter: slog.LevelError}
		log.Log(ctx, level[end], "attempt ended", "end", end, "reason", err)
	}
	ended(end)
}

// attemptEnd is how an attempt ended, and what the message has then.
type attemptEnd struct {
	end             End
	dead            bool
	attempts, waits int
	pause           time.Duration
	deadline        *bool // whether it waits for a service with a deadline, or without one; nil if it does not wait
	reason          error
}

// endOf says how an attempt ended. d.Attempt is the failed attempts since the last wait, the deaths, and one. An error or
// a panic keeps the count, a wait begins it anew, and a release takes its one back.
func (p *Processor) endOf(ctx context.Context, d *Delivery, err error) attemptEnd {
	var waiting *WaitError
	var dead *DeadLetterError
	e := attemptEnd{attempts: d.Attempt - d.Deaths, waits: d.Waits, reason: err}
	cause := context.Cause(ctx)
	switch {
	case err == nil:
		e.end = EndDone
	case errors.Is(cause, errLost) || IsLost(err):
		e.end = EndLost // nothing is left to do here
	case errors.Is(cause, errDraining):
		e.end, e.attempts, e.reason = EndReleased, e.attempts-1, nil // and due at once, for another worker
	case errors.As(err, &dead):
		e.end, e.dead = EndDeadLetter, true
	case errors.As(err, &waiting), groupcommit.OutcomeOf(err) == groupcommit.Locked: // also for a lock
		waiting = cmp.Or(waiting, &WaitError{})
		e.end, e.attempts, e.waits = EndWaiting, 0, d.Waits+1 // the handler got as far as the service
		if waiting.NeedsOperator {
			e.end = EndBlocked
		}
		e.pause, e.deadline = min(max(waiting.AtLeast, 0), max(LongestWait, p.Policy.BackoffCap)), new(!waiting.NoDeadline)
		if !waiting.NoDeadline {
			e.pause = max(e.pause, p.Policy.backoff(d.Waits))
		}
	default:
		e.end, e.dead, e.pause = EndFailed, e.attempts >= p.Policy.MaxAttempts, p.Policy.backoff(e.attempts-1)
	}
	return e
}

// endClaim ends a claim whose message is not done: endDelivery ends the others. The cast refuses it once the claim was
// taken over or has ended. A message that waits is due at once if another one of its key came since the claim.
const endClaim = `
-- inbox.endClaim
with ended as (
  update inbox i
     set status        = case when e.dead then 'dead' else 'pending' end,
         first         = not (e.dead and $11),
         attempts      = $4,
         deaths        = 0,
         waits         = $5,
         waiting_since = case when $7 then coalesce(waiting_since, clock_timestamp()) when $7 is null then waiting_since end,
         due_at        = clock_timestamp() + case when nudged and $5 > waits then interval '0' else $6::interval end,
         last_error    = coalesce($9, last_error),
         history       = ` + history + ` 'error', left($9, 200))
    from (select coalesce($3 or $7 and waiting_since < clock_timestamp() - $8::interval, false) as dead from inbox where id = $1) e
   where id = $1
     and fence = $2
     and coalesce(message_id = $10 and holder = $12, false)
     and coalesce(status = 'running', false)
  returning id
)
select exists (select from ended)::inbox_ended`

// commitEnd commits the end of a claim, and returns how it ended. A handler that returned must not look like one that
// died, so commitEnd retries while the database is out of reach. Each try compares the fence.
func (p *Processor) commitEnd(ctx context.Context, log *slog.Logger, d *Delivery, e attemptEnd) End {
	unknown := false // whether a try before has stored the end
	for try := 1; ; try++ {
		b := &pgx.Batch{}
		if e.end == EndDone {
			d.queueDone(b)
		} else {
			b.Queue(endClaim, d.row, d.fence, e.dead, e.attempts, e.waits, e.pause, e.deadline, p.Policy.GiveUpAfter, storable(e.reason),
				d.ID, p.Policy.DeadLetters == Pass, d.holder)
			b.Queue(promote, p.Receiver, d.OrderingKey)
		}
		err := p.DB.Commit(ctx, b)
		switch {
		case IsLost(err) && !unknown:
			return EndLost
		case err == nil || IsLost(err):
			return e.end
		case try == 1:
			log.WarnContext(ctx, "the end of the claim could not be stored", "error", err)
		}
		unknown = unknown || groupcommit.OutcomeOf(err) == groupcommit.Unknown
		again := groupcommit.OutcomeOf(err) == groupcommit.Unknown || errors.Is(err, groupcommit.ErrNotCommitted) || isRace(err)
		if !again || !loop.Pause(ctx, 250*time.Millisecond, nil) {
			return EndNotStored
		}
	}
}

// storable is the text of an error, cut, and without what PostgreSQL refuses; nil for none.
func storable(reason error) *string {
	if reason == nil {
		return nil
	}
	text := reason.Error()
	return new(strings.ToValidUTF8(strings.ReplaceAll(text[:min(len(text), 2000)], "\x00", ""), "\uFFFD"))
}
