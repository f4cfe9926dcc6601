package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/outbox"
)

const fillOutbox = `
insert into outbox
       (topic, message_id, payload, metadata)
select 'work',
       gen_random_uuid()::text,
       '{"id":"0198c5f2-e0a9-7000-b1c2-d3e4f5a6b7c8","type":"work","charge_id":"ch_1","version":1}',
       jsonb_build_object('type', 'work', 'ordering_key', gen_random_uuid()::text,
                          'correlation_id', gen_random_uuid()::text, 'causation_id', gen_random_uuid()::text)
  from generate_series(1, %d)`

const countReceived = `
select count(*),
       count(distinct message_id)
  from inbox`

// receive measures how fast messages that wait in the outbox come into the inbox.
func receive(ctx context.Context, s *stage, set setting) (Sample, error) {
	url, err := s.database(ctx, set.Base)
	if err != nil {
		return Sample{}, err
	}
	if err := execute(ctx, url, fmt.Sprintf(fillOutbox, s.sizes.messages)); err != nil {
		return Sample{}, err
	}
	sample, err := counting(ctx, url, func() (window, error) {
		return carried(ctx, order{By: "receive", Database: url, Postmaster: s.server.postmaster, Messages: s.sizes.messages, Program: s.carriers(set.Base)})
	})
	if err != nil {
		return Sample{}, err
	}
	if err := s.tellStatements(ctx, url); err != nil {
		return Sample{}, err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return Sample{}, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var received, distinct int
	if err := conn.QueryRow(ctx, countReceived).Scan(&received, &distinct); err != nil {
		return Sample{}, fmt.Errorf("count what was received: %w", err)
	}
	if received != s.sizes.messages || distinct != received {
		return Sample{}, fmt.Errorf("%d sent, %d received, %d different", s.sizes.messages, received, distinct)
	}
	return sample, nil
}

// receiveByPayonce runs the router until everything was received. What it is told
// of a page may be rolled back, which the count in the table would show.
func receiveByPayonce(ctx context.Context, o order) (w window, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	use := users(o.Postmaster, os.Getpid())
	before, began, received := use(), time.Now(), 0
	all := make(chan struct{})
	ended := make(chan error, 1)
	db, err := postgres.Open(ctx, o.Database, postgres.Options{Application: "bench-receive"})
	if err != nil {
		return w, err
	}
	defer db.Close()
	processor := &inbox.Processor{DB: db, Receiver: receiver, Log: quiet()} // it stores, and starts nothing
	go func() {
		ended <- receiving(ctx, o.Database, func(r inbox.Reception) {
			if received += r.New; received == o.Messages {
				close(all)
			}
		}, processor, outbox.Options{})
	}()
	select {
	case <-all:
	case err := <-ended:
		return w, errors.Join(errors.New("receiving ended early"), err)
	}
	w = window{Done: o.Messages, Total: o.Messages, Seconds: time.Since(began).Seconds(), Used: use().minus(before)}
	// The page that holds the last message is committed before the router stops.
	if err := pause(ctx, 200*time.Millisecond); err != nil {
		return w, err
	}
	stop()
	return w, <-ended
}
