package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
)

// Messages are claimed in waves: so many before the measurement, and so many in it.
const (
	wavesBefore = 10
	wavesSeen   = 3
)

// claims measures how fast the inbox's claims hand out messages that were stored as
// pending, after wavesBefore waves of them. A held snapshot keeps PostgreSQL from
// removing the index entries that finished messages leave behind.
func claims(held bool) func(context.Context, *bench, setting) (Sample, error) {
	return func(ctx context.Context, b *bench, set setting) (Sample, error) {
		return b.inChild(ctx, set, "", task{By: "claims", Messages: b.sizes.claims, Held: held}, func(url string, handled int) error {
			var done, attempts int
			err := read(ctx, url, "select count(*), sum(attempts) from inbox where status = 'done'", nil, &done, &attempts)
			if err == nil && (done != handled || attempts != handled) {
				err = fmt.Errorf("%d handled, %d done after %d attempts", handled, done, attempts)
			}
			return err
		})
	}
}

const insertPending = `
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
select $1, $2::int || '-' || n, $2::int || '-' || n, 'work', '', '{}', ''
  from generate_series(1, $3::int) as n`

// claimByPayonce runs the inbox's processor on messages that are inserted as pending,
// wave by wave. A wave is measured from its commit to the last handler.
func claimByPayonce(ctx context.Context, t task) (w window, err error) {
	db, err := postgres.Open(ctx, t.Database, postgres.Options{Application: "bench-claims", Writes: writes()})
	if err != nil {
		return w, err
	}
	defer db.Close()
	holder, err := pgx.Connect(ctx, t.Database)
	if err != nil {
		return w, fmt.Errorf("connect: %w", err)
	}
	defer holder.Close(context.WithoutCancel(ctx))
	if t.Held { // as a dump or a report does
		if _, err := holder.Exec(ctx, "begin isolation level repeatable read; select count(*) from inbox"); err != nil {
			return w, fmt.Errorf("hold a snapshot: %w", err)
		}
	}
	var handled atomic.Int64
	all, wake := make(chan struct{}, 1), make(chan struct{}, 1)
	processor := newProcessor(db, t, func(context.Context, *inbox.Delivery) error {
		if handled.Add(1)%int64(t.Messages) == 0 {
			all <- struct{}{}
		}
		return nil
	})
	processor.Wake, processor.Listening = wake, func() bool { return true }
	running, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { _ = processor.Run(running); close(ended) }()
	defer func() { stop(); <-ended }()
	use := users(t.Postmaster, os.Getpid())
	for wave := range wavesBefore + wavesSeen {
		if err := execute(ctx, t.Database, insertPending, receiver, wave, t.Messages); err != nil {
			return w, err
		}
		before, began := use(), time.Now()
		wake <- struct{}{}
		select {
		case <-all:
		case <-time.After(drainPatience):
			return w, fmt.Errorf("%d of %d messages were handled", handled.Load(), (wave+1)*t.Messages)
		}
		if wave >= wavesBefore {
			w.Done += t.Messages
			w.Seconds += time.Since(began).Seconds()
			w.Used = w.Used.plus(use().minus(before))
		}
	}
	w.Total = int(handled.Load())
	return w, nil
}
