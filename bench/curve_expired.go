package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// How long a worker keeps messages unless it is told otherwise.
const (
	outboxWindow = 24 * time.Hour
	inboxWindow  = 7 * 24 * time.Hour
)

// What has expired: a third of it keys with their answers, a third messages that
// were received, a third messages that are done. Each row is older than the one
// after it, and about as long as a real one.
const (
	expireKeys = `
insert into idempotency_keys
       (scope, operation, key, fingerprint, request, status_code, content_type, body, expires_at)
select $2, 'POST /v1/charges', gen_random_uuid()::text, sha256('x'), convert_to(repeat('x', 150), 'UTF8'), 202, 'application/json',
       convert_to(repeat('x', 350), 'UTF8'), clock_timestamp() - interval '1 day' + n * interval '50 ms'
  from generate_series(1, $1::int) as n`

	expireMessages = `
insert into outbox
       (topic, message_id, payload, metadata, created_at)
select 'charges', gen_random_uuid()::text, convert_to(repeat('x', 150), 'UTF8'),
       '{"type": "charge.requested.v1", "ordering_key": "ch_x"}',
       clock_timestamp() - interval '3 days' + n * interval '50 ms'
  from generate_series(1, $1::int) as n`

	expireReceived = `
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, done_fence, finished_at, received_in)
select 'fulfillment', gen_random_uuid()::text, 'ch_' || n, 'charge.requested.v1', convert_to(repeat('x', 150), 'UTF8'),
       '{"type": "charge.requested.v1"}', sha256('x'), 'done', 0,
       clock_timestamp() - interval '9 days' + n * interval '50 ms', '3'
  from generate_series(1, $1::int) as n`

	receivedAll = `
insert into outbox_offsets
       (topic, consumer_group, transaction_id, "offset")
select topic,
       'inbox',
       transaction_id,
       "offset"
  from outbox
 order by transaction_id desc, "offset" desc
 limit 1`
)

// expired are rows of each kind.
type expired struct{ keys, messages, done int }

// expire puts rows into the tables that a janitor has to do with.
func (w *world) expire(ctx context.Context, rows int) (expired, error) {
	e := expired{keys: rows / 3, messages: rows / 3}
	e.done = rows - e.keys - e.messages
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return e, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, statement := range []struct {
		sql  string
		args []any
	}{
		{expireKeys, []any{e.keys, merchant}},
		{expireMessages, []any{e.messages}},
		{receivedAll, nil},
		{expireReceived, []any{e.done}},
	} {
		if _, err := conn.Exec(ctx, statement.sql, statement.args...); err != nil {
			return e, fmt.Errorf("make rows that have expired: %w", err)
		}
	}
	if err := tidy(ctx, conn); err != nil {
		return e, err
	}
	// Rows that expire were last touched before the checkpoints of days.
	if _, err := conn.Exec(ctx, "checkpoint"); err != nil {
		return e, fmt.Errorf("make a checkpoint: %w", err)
	}
	return e, nil
}

const countExpired = `
select (select count(*)
          from idempotency_keys
         where body is null),
       (select count(*)
          from outbox
         where created_at < now() - interval '1 day'),
       (select count(*)
          from inbox)`

// checkSwept says whether what has expired is gone, and no other key's answer: of
// a key that has expired a tombstone stays.
func (w *world) checkSwept(ctx context.Context, gone expired) error {
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var left expired
	var tombstones int
	if err := conn.QueryRow(ctx, countExpired).Scan(&tombstones, &left.messages, &left.done); err != nil {
		return fmt.Errorf("count what was swept: %w", err)
	}
	if left.keys = gone.keys - tombstones; left != (expired{}) {
		return fmt.Errorf("of %d keys, %d messages in the outbox and %d in the inbox that have expired, %d, %d and %d were not swept",
			gone.keys, gone.messages, gone.done, left.keys, left.messages, left.done)
	}
	return nil
}

const anyExpired = `
select exists (
         select
           from idempotency_keys
          where body is not null
            and expires_at < now())
    or exists (
         select
           from outbox
          where created_at < now() - interval '1 day')
    or exists (
         select
           from inbox)`

func (w *world) expiredLeft(ctx context.Context) (left bool, err error) {
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := conn.QueryRow(ctx, anyExpired).Scan(&left); err != nil {
		return false, fmt.Errorf("look for what has expired: %w", err)
	}
	return left, nil
}
