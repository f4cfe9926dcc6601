package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The idempotent receiver that articles show, with a table as the queue: the
// message is marked as processed, worked on and completed in one transaction,
// which is open during the call of the external service. A crash after the call rolls all
// of it back, and the call is made again.
const createNaive = `
create table messages (
  id         bigint not null generated always as identity primary key,
  message_id text   not null
);
create table processed_messages (
  message_id     varchar(255) primary key,
  message_type   varchar(100) not null,
  processed_at   timestamp    not null default current_timestamp,
  result_payload jsonb,
  status         varchar(20)  not null default 'processing',
  expires_at     timestamp    not null
);
create index idx_processed_messages_type on processed_messages (message_type);
create index idx_processed_messages_expires on processed_messages (expires_at)`

const insertNaive = `
insert into messages
       (message_id)
values ($1)`

const takeNaive = `
delete from messages
 where id = (select id
               from messages
              order by id
              limit 1
                for update skip locked)
returning message_id`

const markNaive = `
insert into processed_messages
       (message_id, message_type, status, expires_at)
values ($1, 'work', 'processing', current_timestamp + interval '7 days')
on conflict (message_id) do nothing
returning message_id`

const completeNaive = `
update processed_messages
   set status         = 'completed',
       result_payload = $2
 where message_id = $1`

func naiveCarrier(ctx context.Context, c *carrier) (accepting, error) {
	if err := execute(ctx, c.Database, createNaive); err != nil {
		return nil, err
	}
	pool, err := openPool(ctx, c.Database, c.Workers+senders/2)
	if err != nil {
		return nil, err
	}
	for range c.Workers {
		c.background.Go(func() error { return c.consume(ctx, pool) })
	}
	return func(ctx context.Context, b *pgx.Batch, id string) error {
		b.Queue(insertNaive, id)
		return pool.SendBatch(ctx, b).Close()
	}, nil
}

// consume takes messages until ctx ends, and waits a little when there is none.
func (c *carrier) consume(ctx context.Context, pool *pgxpool.Pool) error {
	for ctx.Err() == nil {
		id, err := c.receiveNaively(context.WithoutCancel(ctx), pool)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			_ = pause(ctx, peerPoll) // the loop sees that ctx ended
		case err != nil:
			return err
		default:
			c.loop.end(id)
		}
	}
	return nil
}

// receiveNaively is one message, from beginning to end in one transaction. ErrNoRows if
// there is none.
func (c *carrier) receiveNaively(ctx context.Context, pool *pgxpool.Pool) (id string, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, takeNaive).Scan(&id); err != nil {
			return err
		}
		var marked string
		if err := tx.QueryRow(ctx, markNaive, id).Scan(&marked); err != nil {
			return fmt.Errorf("mark %s: %w", id, err)
		}
		inside := func(ctx context.Context, b *pgx.Batch, _ bool) error { return tx.SendBatch(ctx, b).Close() }
		if err := c.work.do(ctx, id, inside); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, completeNaive, id, []byte(`{"status":"success"}`))
		return err
	})
	return id, err
}
