package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/loop"
)

// endDelivery ends one delivery, endDeliveries several of one group commit. An end that does not apply violates
// inbox_done_by_holder on purpose, which refuses its whole batch: a stale fence does, and where fewer rows
// have ended than should, since one is gone or has ended, or two end one row in a group, an impossible row is
// inserted. A message that was taken over and waits for its next claim may still end. The message's id and the
// holder are compared since row numbers and fences may be given again after a failover that lost commits. Rows
// are locked first, by number, as other statements lock them.
//
// If we die here: all of them have ended, each with its effects, or none has. Test: TestModel.
const (
	endDelivery = `-- inbox.endDelivery
with ending (id, fence, message_id, holder) as (values ($1::bigint, $2::bigint, $3::text, $4::text))` + endAll
	endDeliveries = `-- inbox.endDelivery
with ending (id, fence, message_id, holder) as (select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]))` + endAll

	endAll = `, locked as (
  select id
    from inbox
   where id = any (array(select id from ending))
   order by id
     for no key update
), ended as (
  update inbox
     set status      = 'done',
         first       = false,
         done_fence  = (select max(fence) from ending where ending.id = inbox.id),
         finished_at = clock_timestamp(),
         last_error  = null
   where id = any (array(select id from locked))
     and coalesce(status in ('running', 'pending'), false)
     and (message_id, holder) in (select message_id, holder from ending where ending.id = inbox.id)
  returning id
)
` + insertRefused + `
  from ending
 where (select count(*) from ended) < (select count(*) from ending)`

	// endClaim ends a claim without finishing the message. The constraint refuses it for a claim that
	// was taken over or has ended. A message that waits is due at once if another one of its key came
	// since the claim.
	endClaim = `
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
` + insertRefused + `
  from (values ($2::bigint)) as claim (fence)
 where not exists (select from ended)`

	// insertRefused inserts rows that inbox_done_by_holder refuses.
	insertRefused = `insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, fence, done_fence)
select '', '', '', '', '', '{}', '', fence, fence + 1`

	// history is the column of a message i with one more entry, for the claim that ends.
	history = `case when jsonb_array_length(i.history) >= 16 then i.history - 8 else coalesce(i.history, '[]') end ||
                   jsonb_build_object('fence', i.fence, 'holder', i.holder, 'claimed_at', i.claimed_at, 'at', clock_timestamp(),`
)

// Commit commits a batch that holds the handler's last effect, together with the end of the
// delivery. If the message was taken over or has ended, the constraint refuses the whole batch, and
// IsLost reports it. So the same batch may be committed again after an unknown outcome.
func (d *Delivery) Commit(ctx context.Context, db groupcommit.DB, b *pgx.Batch) error {
	all := &pgx.Batch{QueuedQueries: slices.Clone(b.QueuedQueries)}
	d.queueEnd(all)
	err := db.Commit(ctx, all)
	d.endedByHandler = err == nil
	return err
}

func (d *Delivery) queueEnd(b *pgx.Batch) {
	b.Queue(endDelivery, d.row, d.fence, d.ID, d.holder)
	b.Queue(promote, d.receiver, d.OrderingKey)
}

// Done ends the delivery in the transaction that holds the handler's last effect, and is its
// last statement. It refuses as Commit does. If the transaction is rolled back after it, though
// the handler returns nil, the message is handled again after some seconds.
func (d *Delivery) Done(ctx context.Context, tx pgx.Tx) error {
	b := &pgx.Batch{}
	d.queueEnd(b)
	err := tx.SendBatch(ctx, b).Close()
	d.endedByHandler = err == nil
	return err
}

// IsLost reports whether a transaction was refused because another holder has claimed the message, or
// because it has ended: by another holder, or by an earlier commit of this delivery. The handler stops.
func IsLost(err error) bool { return groupcommit.Constraint(err) == "inbox_done_by_holder" }

// Writes are the statements of this package that may share a group commit. store comes with the inserts, though it
// also locks the heads that it nudges: a deadlock over them ends by the lock time-out of the group.
func Writes() []groupcommit.Statement {
	return []groupcommit.Statement{
		{SQL: store, ManyRows: storeMany, Wakes: func(a []any) string { return fmt.Sprint(a[0]) }},
		{SQL: endDelivery, ManyRows: endDeliveries, Locks: "inbox", Key: 1},
		{SQL: endClaim, Locks: "inbox", Key: 1},
		{SQL: promote, ManyRows: promoteMany, Locks: "keys of the inbox", Key: 2},
	}
}

// process runs the handler and ends the claim.
func (p *Processor) process(ctx context.Context, d *Delivery) End {
	ended := func(End) {}
	if p.OnAttempt != nil {
		ctx, ended = p.OnAttempt(ctx, d)
	}
	own := *d // a copy: the handler may change it
	err := context.Cause(ctx)
	if err == nil {
		err = loop.Safely(func() error { return p.Handle(ctx, &own) })
	}
	d.endedByHandler = own.endedByHandler
	e := p.endOf(ctx, d, err)
	log := p.Log.With("receiver", p.Receiver, "message_id", d.ID, "ordering_key", d.OrderingKey, "attempt", d.Attempt)
	end := e.end
	if end != EndLost && (err != nil || !d.endedByHandler) {
		end = p.finish(ctx, log, d, e)
	}
	if end != EndDone && end != EndNotStored {
		level := map[End]slog.Level{EndFailed: slog.LevelWarn, EndLost: slog.LevelWarn, EndBlocked: slog.LevelError, EndDeadLetter: slog.LevelError}
		log.Log(ctx, level[end], "attempt ended", "end", end, "reason", err)
	}
	ended(end)
	return end
}

// claimEnd is how a claim ends, and what the message has then.
type claimEnd struct {
	end             End
	dead            bool
	attempts, waits int
	pause           time.Duration
	deadline        *bool // whether it waits for a service with a deadline, or without one; nil if it does not wait
	reason          error
}

// endOf says how an attempt ended.
func (p *Processor) endOf(ctx context.Context, d *Delivery, err error) claimEnd {
	var waiting *WaitError
	var dead *DeadLetterError
	e := claimEnd{attempts: d.Attempt - d.Deaths, waits: d.Waits, reason: err} // a handler that returned did not cause the deaths before it
	cause := context.Cause(ctx)
	switch {
	case err == nil:
		e.end = EndDone
	case errors.Is(cause, errLost) || IsLost(err):
		e.end = EndLost // nothing is left to do here
	case errors.Is(cause, errDraining):
		e.end, e.attempts, e.reason = EndReleased, e.attempts-1, nil
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

func (p *Processor) queueClaimEnd(b *pgx.Batch, d *Delivery, e claimEnd) {
	if e.end == EndDone {
		d.queueEnd(b)
		return
	}
	b.Queue(endClaim, d.row, d.fence, e.dead, e.attempts, e.waits, e.pause, e.deadline, p.Policy.GiveUpAfter, storable(e.reason),
		d.ID, p.Policy.DeadLetters == Pass, d.holder)
	b.Queue(promote, p.Receiver, d.OrderingKey)
}

// finish commits the end of a claim, and returns how it ended. A handler that returned must not look like one that
// died, so finish retries while the database is out of reach. Each try compares the fence.
func (p *Processor) finish(ctx context.Context, log *slog.Logger, d *Delivery, e claimEnd) End {
	unknown := false // whether a try before has stored the end
	for first := true; ; first = false {
		b := &pgx.Batch{}
		p.queueClaimEnd(b, d, e)
		err := p.DB.Commit(ctx, b)
		switch {
		case IsLost(err) && !unknown:
			return EndLost
		case err == nil || IsLost(err):
			return e.end
		case first:
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
