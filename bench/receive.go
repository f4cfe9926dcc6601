package main

import (
	"context"
	"fmt"
	"os"
	"time"

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

// receiveMessages measures how fast messages that wait in the outbox are stored in the inbox.
func receiveMessages(ctx context.Context, b *bench, set setting) (Sample, error) {
	messages := b.sizes.messages
	return b.inChild(ctx, set, fmt.Sprintf(fillOutbox, messages), task{By: "receive", Messages: messages}, func(url string, _ int) error {
		var received, distinct int
		err := read(ctx, url, "select count(*), count(distinct message_id) from inbox", nil, &received, &distinct)
		if err == nil && (received != messages || distinct != received) {
			err = fmt.Errorf("%d sent, %d received, %d different", messages, received, distinct)
		}
		return err
	})
}

// receiveByPayonce receives until everything was received.
func receiveByPayonce(ctx context.Context, t task) (w window, err error) {
	ctx, stop := context.WithTimeout(ctx, drainPatience)
	defer stop()
	use := users(t.Postmaster, os.Getpid())
	before, began, received := use(), time.Now(), 0
	db, err := postgres.Open(ctx, t.Database, postgres.Options{Application: "bench-receive"})
	if err != nil {
		return w, err
	}
	defer db.Close()
	processor, err := inbox.New(inbox.Options{DB: db, Receiver: receiver, Log: quiet(), Handle: func(context.Context, *inbox.Delivery) error { return nil }, OnReceive: func(r inbox.Reception) {
		if received += r.New; received == t.Messages {
			w = window{Done: t.Messages, Total: t.Messages, Seconds: time.Since(began).Seconds(), Used: use().minus(before)}
			stop()
		}
	}})
	if err != nil {
		return w, err
	}
	processor.Pause(true) // it stores, and starts nothing
	return w, receiving(ctx, t.Database, processor, outbox.Options{})
}
