package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/loop"
)

// ErrSkip is returned by Source.Read for a message that is none of the receiver's: it is
// acknowledged and not stored.
var ErrSkip = errors.New("the message is for another receiver")

// ErrClosed is returned by Consume when the subscriber ends the subscription.
var ErrClosed = errors.New("the subscription ended")

// Source is a topic of a transport.
type Source struct {
	Subscriber message.Subscriber
	Topic      string

	// Read says what the inbox stores of a message: its type, its ordering key, its id. What
	// it leaves empty of the id, the payload and the metadata is the transport's: the id is
	// then the UUID. It depends on the message alone, so that each delivery of a message has
	// one result. After ErrSkip the message is passed over; after any other error, and after a
	// panic, it is stored as a dead letter. Where the type, the ordering key and the partition
	// are all empty, they are those of the metadata that package outbox writes: type,
	// ordering_key and partition_key.
	//
	// A transport that gives a message another UUID when it is sent again needs an id of the
	// sender, of the business or of the content: idempotency.ParseKey, NaturalKey, Content.
	Read func(*message.Message) (Message, error)

	// Split, where set, returns the messages that one message of the transport carries, such
	// as those of a page (outbox.Messages). They are stored together, and acknowledged as the
	// one that carries them.
	Split func(*message.Message) ([]*message.Message, error)

	// Require, where set, queues statements that run first in the transaction that stores a
	// message of the transport. If one of them fails, nothing of the page is stored, and it is
	// refused. See outbox.SameTimeline.
	Require func(b *pgx.Batch, m *message.Message)
}

const (
	pageMessages = 500
	pageBytes    = 1 << 20 // of payloads; a longer message is a page of its own
	logEvery     = time.Minute
	yields       = 3 // how often Consume lets other goroutines run before it takes what is ready
)

// Consume subscribes to a topic and receives its messages until ctx ends, then it returns
// nil, or until the subscriber ends the subscription (ErrClosed). It takes one message, and
// with it those that are ready behind it: it never waits for a second one, so a transport
// may deliver one at a time. It stores them as Receive does, and only then acknowledges
// them. If they cannot be stored it refuses them (Nack), so that they are redelivered,
// and takes half as many. A nil message is passed over.
//
// While Run runs, Consume takes messages only as far as Capacity says. Before, it
// stores what comes, and after it takes nothing. It has no goroutine of its own, and leaves
// the subscriber open.
//
// If we die here: what was not acknowledged is redelivered. Test:
// TestConsume_besideADyingProcess.
func (p *Processor) Consume(ctx context.Context, from Source) error {
	r, err := p.state()
	if err == nil && from.Subscriber == nil {
		err = errors.New("inbox: the source has no Subscriber")
	}
	if err != nil {
		return err
	}
	deliveries, err := from.Subscriber.Subscribe(ctx, from.Topic)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil //nolint:nilerr // the caller has ended it
	case err != nil:
		return fmt.Errorf("subscribe to %s: %w", from.Topic, err)
	}
	var logged time.Time // when the failure was, that lasts; zero if none does
	for most := pageMessages; ; {
		page := take(ctx, deliveries, min(most, r.capacity(ctx, from)))
		if ctx.Err() != nil && len(page) == 0 {
			return nil
		}
		if len(page) == 0 {
			return fmt.Errorf("consume %s: %w", from.Topic, ErrClosed)
		}
		messages, err := r.consume(ctx, from, page)
		if err == nil {
			if !logged.IsZero() {
				r.Log.InfoContext(ctx, "receiving works again", "receiver", r.Receiver, "topic", from.Topic)
			}
			logged, most = time.Time{}, min(pageMessages, 2*most)
			continue
		}
		if now := time.Now(); now.Sub(logged) >= logEvery { //nolint:forbidigo // it decides only what is logged
			logged = now
			r.Log.WarnContext(ctx, "receive failed, the messages will be redelivered",
				"receiver", r.Receiver, "topic", from.Topic, "messages", messages, "message_id", page[len(page)-1].UUID, "error", err)
		}
		most = max(1, len(page)/2)
		loop.Pause(ctx, afterFailure, nil)
	}
}

// capacity returns how many messages to take. A page is bounded by its subscriber, which
// may hold a transaction open for it.
func (r *run) capacity(ctx context.Context, from Source) int {
	r.mu.Lock()
	runs := r.runCtx != nil
	r.mu.Unlock()
	if !runs || from.Split != nil {
		return pageMessages
	}
	return r.Capacity(ctx)
}

// take waits for a message, and returns it with those that are ready behind it; none when
// ctx has ended or the channel is closed.
func take(ctx context.Context, messages <-chan *message.Message, most int) (page []*message.Message) {
	if most == 0 {
		return nil
	}
	bytes := 0
	add := func(m *message.Message, open bool) (more bool) {
		if open && m != nil {
			page = append(page, m)
			bytes += len(m.Payload)
		}
		return open && len(page) < most && bytes < pageBytes
	}
	more := true
	for more && len(page) == 0 {
		select {
		case <-ctx.Done():
			more = false
		case m, open := <-messages:
			more = add(m, open)
		}
	}
	for yielded := 0; more && yielded < yields; {
		select {
		case m, open := <-messages:
			more, yielded = add(m, open), 0
		default:
			yielded++
			runtime.Gosched() // a subscriber may be about to deliver
		}
	}
	return page
}

// consume stores a page, and acknowledges or refuses its messages. It returns how many messages
// it is when they are split.
func (r *run) consume(ctx context.Context, from Source, page []*message.Message) (messages int, err error) {
	messages = len(page)
	err = loop.Safely(func() (err error) {
		messages, err = r.keep(ctx, from, page)
		return err
	})
	for _, m := range page {
		if err == nil {
			m.Ack()
		} else {
			m.Nack()
		}
	}
	return messages, err
}

// keep stores a page, and returns how many messages it is.
func (r *run) keep(ctx context.Context, from Source, page []*message.Message) (int, error) {
	all := page
	if from.Split != nil {
		all = nil
		for _, m := range page {
			split, err := from.Split(m)
			if err != nil {
				return len(page), err
			}
			all = append(all, split...)
		}
	}
	read := make([]*incoming, 0, len(all))
	for _, m := range all {
		if stored, err := from.read(m); !errors.Is(err, ErrSkip) {
			read = append(read, received(stored, err))
		}
	}
	required := &pgx.Batch{}
	for _, m := range page {
		if from.Require != nil {
			from.Require(required, m)
		}
	}
	_, err := r.receive(ctx, read, required.QueuedQueries...)
	return len(all), err
}

// read returns what is stored of a message, and turns a panic of Read into an error.
func (from Source) read(m *message.Message) (stored Message, err error) {
	if from.Read != nil {
		err = loop.Safely(func() (err error) { stored, err = from.Read(m); return err })
	}
	stored.ID = cmp.Or(stored.ID, m.UUID)
	if stored.Payload == nil {
		stored.Payload = m.Payload
	}
	if stored.Metadata == nil {
		stored.Metadata = m.Metadata
	}
	if stored.Type == "" && stored.OrderingKey == "" && stored.Partition == "" {
		stored.Type, stored.OrderingKey, stored.Partition = m.Metadata.Get("type"), m.Metadata.Get("ordering_key"), m.Metadata.Get("partition_key")
	}
	return stored, err
}
