package inbox

import (
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

// endDelivery ends one delivery, endDeliveries several of one group commit. An end that does not apply
// refuses its whole batch by inbox_done_by_holder: the statement writes the holder's fence, which the
// constraint compares with the row's, and inserts a row that the constraint refuses if fewer rows
// have ended than should: one is gone or has ended, or two end one row in a group. A message that
// was taken over and waits for its next claim may still end. The message's id is compared since
// row numbers may be given again after a failover that lost rows, under the same fences. Rows are locked
// first, by number, as other statements lock them.
//
// If we die here: all of them have ended, each with its effects, or none has. Test: TestModel.
const (
	endDelivery = `-- inbox.endDelivery
with ending (id, fence, message_id) as (values ($1::bigint, $2::bigint, $3::text))` + endAll
	endDeliveries = `-- inbox.endDelivery
with ending (id, fence, message_id) as (select * from unnest($1::bigint[], $2::bigint[], $3::text[]))` + endAll

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
     and message_id = any (array(select message_id from ending where ending.id = inbox.id))
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
     and coalesce(message_id = $10, false)
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
	b.Queue(endDelivery, d.row, d.fence, d.ID)
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

// Writes are the statements of this package that may share a group commit.
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
	own, err := *d, context.Cause(ctx) // which the handler may change
	if err == nil {
		err = loop.Safely(func() error { return p.Handle(ctx, &own) })
	}
	d.endedByHandler = own.endedByHandler
	end, queue := p.endOf(ctx, d, err)
	log := p.Log.With("receiver", p.Receiver, "message_id", d.ID, "ordering_key", d.OrderingKey, "attempt", d.Attempt)
	if queue != nil {
		end = p.finish(ctx, log, end, queue)
	}
	if end != EndDone && end != EndNotStored {
		level := map[End]slog.Level{EndFailed: slog.LevelWarn, EndLost: slog.LevelWarn, EndBlocked: slog.LevelError, EndDeadLetter: slog.LevelError}
		log.Log(ctx, level[end], "attempt ended", "end", end, "reason", err)
	}
	ended(end)
	return end
}

// endOf says how an attempt ended, and what stores that, if anything does.
func (p *Processor) endOf(ctx context.Context, d *Delivery, err error) (end End, queue func(*pgx.Batch)) {
	var waiting *WaitError
	var dead *DeadLetterError
	attempts := d.Attempt - d.Deaths // a handler that returned did not cause the deaths before it
	cause := context.Cause(ctx)
	switch {
	case err == nil && d.endedByHandler:
		return EndDone, nil
	case err == nil:
		return EndDone, d.queueEnd
	case errors.Is(cause, errLost) || IsLost(err):
		return EndLost, nil // nothing is left to do here
	case errors.Is(cause, errDraining):
		return EndReleased, p.ending(d, false, attempts-1, d.Waits, 0, nil, nil)
	case errors.As(err, &dead):
		return EndDeadLetter, p.ending(d, true, attempts, d.Waits, 0, nil, err)
	case errors.As(err, &waiting):
		pause, limited := min(max(waiting.AtLeast, 0), max(LongestWait, p.Policy.BackoffCap)), !waiting.NoDeadline
		if limited {
			pause = max(pause, p.Policy.backoff(d.Waits))
		}
		if end = EndWaiting; waiting.NeedsOperator {
			end = EndBlocked
		}
		return end, p.ending(d, false, 0, d.Waits+1, pause, &limited, err) // the handler got as far as the service
	}
	return EndFailed, p.ending(d, attempts >= p.Policy.MaxAttempts, attempts, d.Waits, p.Policy.backoff(attempts-1), nil, err)
}

// ending queues the end of a claim. limited says whether the message waits for a service, with a
// deadline or without one; nil if it does not.
func (p *Processor) ending(d *Delivery, dead bool, attempts, waits int, pause time.Duration, limited *bool, reason error) func(*pgx.Batch) {
	var text *string
	if reason != nil {
		cut := storable(reason.Error())
		text = &cut
	}
	return func(b *pgx.Batch) {
		b.Queue(endClaim, d.row, d.fence, dead, attempts, waits, pause, limited, p.Policy.GiveUpAfter, text, d.ID, p.Policy.DeadLetters == Pass)
		b.Queue(promote, p.Receiver, d.OrderingKey)
	}
}

// finish commits the end of a claim, and returns how it ended. It retries while the database is out of reach, since a
// handler that returned must not look like one that died; each statement compares the fence.
func (p *Processor) finish(ctx context.Context, log *slog.Logger, end End, queue func(*pgx.Batch)) End {
	unknown := false // whether a try before has stored the end
	for first := true; ; first = false {
		b := &pgx.Batch{}
		queue(b)
		err := p.DB.Commit(ctx, b)
		switch {
		case IsLost(err) && !unknown:
			return EndLost
		case err == nil || IsLost(err):
			return end
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

// storable cuts the text of an error, and removes what PostgreSQL refuses.
func storable(reason string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(reason[:min(len(reason), 2000)], "\x00", ""), "\uFFFD")
}
