package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/loop"
)

// process runs the handler and ends the claim.
func (r *run) process(ctx context.Context, d *Delivery) End {
	ended := func(End) {}
	if r.OnAttempt != nil {
		ctx, ended = r.OnAttempt(ctx, d)
	}
	o := r.attempt(ctx, d)
	log := r.Log.With("receiver", r.Receiver, "message_id", d.ID, "ordering_key", d.OrderingKey, "attempt", d.Attempt)
	if o.queue != nil && !r.finish(ctx, log, o.queue) {
		o.end = EndNotStored
	} else if o.log != "" {
		log.Log(ctx, o.level, o.log, "reason", o.reason) //nolint:sloglint // the outcomes below are the messages
	}
	ended(o.end)
	return o.end
}

// claimEnd is how an attempt ended: the statements that store it, if any, and the log line
// once it is stored, if any.
type claimEnd struct {
	end    End
	queue  func(*pgx.Batch)
	level  slog.Level
	log    string
	reason error
}

var errHoldersDied = errors.New("holders died or went silent")

// attempt runs the handler and says how the claim ends.
func (r *run) attempt(ctx context.Context, d *Delivery) claimEnd {
	if errors.Is(context.Cause(ctx), errDraining) {
		return r.claimEndOf(ctx, d, errDraining)
	}
	if d.deaths >= r.Policy.MaxDeaths {
		// No handler returned that could say why.
		return deadLetter(d, fmt.Errorf("%d %w", d.deaths, errHoldersDied))
	}
	if d.deaths >= minDeathsOfSuspected {
		r.Log.WarnContext(ctx, "suspected poison message: its holders died or went silent",
			"receiver", r.Receiver, "message_id", d.ID, "ordering_key", d.OrderingKey, "deaths", d.deaths)
	}
	own := *d // which the handler may change
	err := loop.Safely(func() error { return r.Handle(ctx, &own) })
	d.endedByHandler = own.endedByHandler
	return r.claimEndOf(ctx, d, err)
}

func (r *run) claimEndOf(ctx context.Context, d *Delivery, err error) claimEnd {
	var waiting *WaitError
	var dead *DeadLetterError
	switch {
	case err == nil && d.endedByHandler:
		return claimEnd{end: EndDone}
	case err == nil:
		return claimEnd{end: EndDone, queue: d.queueEnd}
	case errors.Is(context.Cause(ctx), errLeaseLost) || IsLeaseLost(err):
		return claimEnd{EndLeaseLost, nil, slog.LevelWarn, "lease lost, the new holder continues", err}
	case errors.Is(context.Cause(ctx), errDraining):
		released := ending{attempts: d.Attempt - d.deaths - 1, waits: d.Waits}
		return claimEnd{EndReleased, released.of(d), slog.LevelInfo, "message released", err}
	case errors.As(err, &dead):
		return deadLetter(d, err)
	case errors.As(err, &waiting) && waiting.NeedsOperator:
		return claimEnd{EndBlocked, r.Policy.wait(d, *waiting, err), slog.LevelError, "message waits for an operator", err}
	case errors.As(err, &waiting):
		return claimEnd{EndWaiting, r.Policy.wait(d, *waiting, err), slog.LevelInfo, "message waits", err}
	case isUnavailable(err):
		return claimEnd{EndWaiting, r.Policy.wait(d, WaitError{}, err), slog.LevelWarn, "message waits for the database", err}
	}
	// A handler that returned shows that it did not cause the deaths before it.
	attempts := d.Attempt - d.deaths
	failed := ending{
		dead: attempts >= r.Policy.MaxAttempts, attempts: attempts, waits: d.Waits,
		pause: r.Policy.backoff(attempts - 1), reason: err,
	}
	return claimEnd{EndFailed, failed.of(d), slog.LevelWarn, "attempt failed", err}
}

// wait forgets earlier errors, since the handler got as far as the service. If a message of
// its key was received after the claim, the message is due at once.
func (p Policy) wait(d *Delivery, w WaitError, reason error) func(*pgx.Batch) {
	waits := ending{
		waits: d.Waits + 1, waiting: !w.NoDeadline, noDeadline: w.NoDeadline, giveUpAfter: p.GiveUpAfter,
		pause: max(min(w.AtLeast, p.longest()), 0), reason: reason,
	}
	if !w.NoDeadline {
		if w.AtMost > 0 {
			p.BackoffCap = min(p.BackoffCap, w.AtMost)
		}
		waits.pause = max(waits.pause, p.backoff(d.Waits))
	}
	return func(b *pgx.Batch) {
		waits.of(d)(b)
		if w.CompletesType != "" {
			b.Queue(completeType, d.row, d.fence, d.ClaimedAt, w.CompletesType, d.ID)
		}
		b.Queue(wake, d.row, d.fence, d.ClaimedAt)
	}
}

func deadLetter(d *Delivery, reason error) claimEnd {
	end := ending{dead: true, attempts: d.Attempt, deaths: d.deaths, waits: d.Waits, reason: reason}
	return claimEnd{EndDeadLetter, end.of(d), slog.LevelError, "dead letter", reason}
}

// finish commits the end of a claim, and retries while the database is unavailable or its
// refusal is transient: a handler that returned must not look like one that died. Each
// statement checks the fence, so it may be repeated. finish returns false when the lease
// is lost or the program stops: the lease expires and the message is claimed again.
func (r *run) finish(ctx context.Context, log *slog.Logger, queue func(*pgx.Batch)) bool {
	for first := true; ; first = false {
		b := &pgx.Batch{}
		queue(b)
		err := r.DB.Commit(ctx, b)
		if err == nil {
			return true
		}
		if first {
			log.WarnContext(ctx, "the end of the claim could not be stored", "error", err)
		}
		// The end of a claim is one row: if that takes too long, other transactions are in the way.
		if !isUnavailable(err) && groupcommit.OutcomeOf(err) != groupcommit.Contended || !loop.Pause(ctx, afterFailure, nil) {
			return false
		}
	}
}

// isUnavailable reports whether an error says that the database of the inbox was out of
// reach: it restarts, fails over, has no connection or space left, or others held a lock
// for too long. That is not the message's fault, so the message waits as for an external
// service. A statement that the server refused, or that ran for too long, may be the
// message's fault, and another host's outage has no marks of our own database.
func isUnavailable(err error) bool {
	if groupcommit.OutcomeOf(err) == groupcommit.Unknown {
		return true
	}
	if _, unsent := errors.AsType[pgx.ErrPreprocessingBatch](err); groupcommit.OutcomeOf(err) == groupcommit.NotCommitted && !unsent {
		return true
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true // whatever the server said
	}
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		return isOutage(refusal.Code)
	}
	// Errors of a connection that was not used for a commit have this method in
	// common and nothing else. Its answer is not used.
	_, broken := errors.AsType[interface {
		error
		SafeToRetry() bool
	}](err)
	return broken
}

// isOutage reports whether an SQLSTATE is about the server, or about other users of it, and
// not about the statement.
func isOutage(code string) bool {
	switch code {
	case "57P01", "57P02", "57P03", // it stops, has crashed, starts
		"25006",                   // a standby: the connection went to the wrong side of a failover
		"40001", "40P01", "55P03": // serialization failure, deadlock, lock time-out
		return true
	}
	switch code[:min(2, len(code))] {
	case "08", "53", "58": // connections, resources, the operating system
		return true
	}
	return false
}

const longestReason = 2000 // bytes

// storable cuts the text of an error, and removes what PostgreSQL refuses: with it the end
// of the claim would be lost.
func storable(reason string) string {
	if len(reason) > longestReason {
		reason = reason[:longestReason]
	}
	return asText(reason)
}
