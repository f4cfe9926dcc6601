package idempotency

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
)

//go:embed schema.sql
var schema string

// Schema returns the SQL that creates idempotency_keys in the first schema of
// the search_path. goose and psql apply it as it is, once, in a transaction. It has no way down.
func Schema() string { return schema }

// onceConstraint refuses the second answer of a key.
const onceConstraint = "idempotency_keys_once"

// insertAnswer is a plain insert: `on conflict do nothing` would let the rest of the batch run.
const insertAnswer = `
insert into idempotency_keys
       (scope, operation, key, fingerprint, request, status_code, content_type, location, body, expires_at, headers)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`

const insertAnswers = `
insert into idempotency_keys
       (scope, operation, key, fingerprint, request, status_code, content_type, location, body, expires_at, headers)
select *
  from unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::int[], $7::text[], $8::text[], $9::bytea[], $10::timestamptz[], $11::jsonb[])`

// Claim queues the key with its finished answer as the first write of the batch that
// does the work. A taken key refuses the whole batch (IsTaken). If a rival is claiming
// the key, the batch waits for the rival's outcome, at most for the pool's lock
// time-out. A rollback leaves the key free.
func Claim(b *pgx.Batch, key Key, r Request, a Answer, expires time.Time) {
	empty := []byte{} // not missing
	b.Queue(insertAnswer, key.Scope, key.Operation, key.Value, append(empty, r.Fingerprint...), r.Canonical,
		a.StatusCode, a.ContentType, a.Location, append(empty, a.Body...), expires, a.headers())
}

// IsTaken reports whether a commit was refused because its key has an answer.
func IsTaken(err error) bool { return groupcommit.Constraint(err) == onceConstraint }

// isInFlight reports whether a commit was refused because another one under the same
// key did not end in time. The server names the constraint at which a commit waited,
// so a lock of the work itself does not count.
func isInFlight(err error) bool {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	return ok && groupcommit.OutcomeOf(err) == groupcommit.Locked && strings.Contains(refusal.Where, onceConstraint)
}

// Writes are the statements of this package that may share a commit.
func Writes() []groupcommit.Statement {
	return []groupcommit.Statement{{SQL: insertAnswer, ManyRows: insertAnswers}}
}

// MaxWait is the longest that Wait waits. A commit has 15 s in all, and after a
// wait there must be time for the rest of the batch.
const MaxWait = 10 * time.Second

// afterWait is what a statement has beside the wait, so that always the lock time-out
// ends it: a statement time-out does not show that there was a rival.
const afterWait = 2 * time.Second

// setTimeouts sets time-outs for the rest of a batch: settings that are local end with the
// transaction, and the batch is one.
const setTimeouts = `
select set_config('lock_timeout', $1, true),
       set_config('statement_timeout', $2, true)`

// Wait queues how long each statement after it in this batch may wait for a lock, such
// as Claim for a rival under the same key: 1 ms to MaxWait. Queue it first. The pool's
// time-outs apply again after the batch.
func Wait(b *pgx.Batch, atMost time.Duration) {
	atMost = min(max(atMost, time.Millisecond), MaxWait) // zero would be no limit at all
	b.Queue(setTimeouts, milliseconds(atMost), milliseconds(max(atMost+afterWait, MaxWait)))
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// KeyState is what the database has of a key. Times are by its clock.
type KeyState struct {
	Key       Key
	Record    Record    // if Found
	FirstSeen time.Time // if Found
	Found     bool
	Now       time.Time // zero if nothing was read

	// Replicates reports that commits of the server wait for a standby. What is read of such a
	// server is confirmed before it is replayed.
	Replicates bool
}

// selectKeys reads taken keys and free ones in one statement, so that a free key comes with
// the database's time. A tombstone stays expired if the server's clock steps back.
//
// offset 0: an index probe for each key. Without it the planner may read the whole scope.
const selectKeys = `
select asked.n,
       c.now,
       k.key is not null                            as found,
       coalesce(k.fingerprint, '')                  as fingerprint,
       k.request,
       coalesce(k.status_code, 0)                   as status_code,
       coalesce(k.content_type, '')                 as content_type,
       coalesce(k.location, '')                     as location,
       k.headers,
       coalesce(k.body, '')                         as body,
       coalesce(k.created_at, c.now)                as first_seen,
       coalesce(k.expires_at, c.now)                as expires_at,
       coalesce(k.expires_at <= c.now
                or k.body is null, false)           as expired,
       current_setting('synchronous_standby_names') <> '' as replicates
  from (select clock_timestamp() as now) as c
 cross join unnest($1::text[], $2::text[], $3::text[]) with ordinality as asked(scope, operation, value, n)
  left join lateral (
            select key, fingerprint, request, status_code, content_type, location, headers, body, created_at, expires_at
              from idempotency_keys
             where scope = asked.scope
               and operation = asked.operation
               and key = asked.value
            offset 0) as k
    on true`

// ReadKey reads the state of a key. It writes nothing: a replay costs one index probe.
func ReadKey(ctx context.Context, q groupcommit.Querier, key Key) (KeyState, error) {
	return readKey(ctx, q, selectKeys, key)
}

func readKey(ctx context.Context, q groupcommit.Querier, sql string, key Key) (KeyState, error) {
	state := KeyState{Key: key}
	args, scan := keysQuery([]*KeyState{&state})
	rows, _ := q.Query(ctx, sql, args...) // they have the error too
	if err := scan(rows); err != nil {
		return state, fmt.Errorf("read an idempotency key: %w", err)
	}
	return state, nil
}

// QueueKeys queues the read of the states of keys.
func QueueKeys(b *pgx.Batch, states []*KeyState) {
	args, scan := keysQuery(states)
	b.Queue(selectKeys, args...).Query(scan)
}

// keysQuery returns the arguments of selectKeys, and what scans its rows into states.
func keysQuery(states []*KeyState) (args []any, scan func(pgx.Rows) error) {
	scopes, operations, values := make([]string, len(states)), make([]string, len(states)), make([]string, len(states))
	for i, s := range states {
		scopes[i], operations[i], values[i] = s.Key.Scope, s.Key.Operation, s.Key.Value
	}
	return []any{scopes, operations, values}, func(rows pgx.Rows) error {
		var n int
		var s KeyState
		_, err := pgx.ForEachRow(rows, []any{
			&n, &s.Now, &s.Found, &s.Record.Fingerprint, &s.Record.Canonical,
			&s.Record.StatusCode, &s.Record.ContentType, &s.Record.Location, &s.Record.Header, &s.Record.Body,
			&s.FirstSeen, &s.Record.ExpiresAt, &s.Record.Expired, &s.Replicates,
		}, func() error {
			s.Key = states[n-1].Key
			*states[n-1] = s
			s.Record.Header = nil // that of the next row is another map
			return nil
		})
		return err
	}
}

// selectConfirmed is selectKeys in a transaction that writes to the WAL. Its commit
// waits for the synchronous standby, as every commit does, and with it for all that the
// same server committed before.
const selectConfirmed = selectKeys + `
 where pg_logical_emit_message(true, 'payonce', '') is not null`

// commitRead reads the state of a key in a commit, which is one of those that db bounds.
func commitRead(ctx context.Context, db groupcommit.DB, sql string, key Key) (KeyState, error) {
	state := KeyState{Key: key}
	args, scan := keysQuery([]*KeyState{&state})
	b := &pgx.Batch{}
	b.Queue(sql, args...).Query(scan)
	if err := db.Commit(ctx, b); err != nil {
		return KeyState{}, err
	}
	return state, nil
}

// confirmTimeout bounds the wait of one replay for the standby. Tests shorten it.
var confirmTimeout = 5 * time.Second

// confirmed returns the state of a key that a failover cannot lose: one that was found is
// read once more where a standby is synchronous, and it may be free since. ErrUnknown if the
// standby did not confirm in time. read reads a key by a statement that writes.
//
// A commit can be visible on the primary before its standby has it: after a restart
// of the primary, or when an operator ended its wait. A failover would lose an answer
// that was replayed from such a key.
func confirmed(ctx context.Context, state KeyState, read func(ctx context.Context, sql string, key Key) (KeyState, error)) (KeyState, error) {
	if !state.Found || !state.Replicates {
		return state, nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	state, err := read(ctx, selectConfirmed, state.Key)
	if err != nil {
		return KeyState{}, fmt.Errorf("confirm a key with the standby: %w", unknownOutcome(err))
	}
	return state, nil
}
