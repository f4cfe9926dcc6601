package inbox

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/payonce/payonce/internal/loop"
)

// Read says what the inbox stores of a message. What it leaves empty is the transport's: id,
// payload and metadata, and the type, ordering key and partition that package outbox writes
// into the metadata. After an error, and after a panic, the message is stored as a dead letter.
//
// A transport that gives a message another UUID when it is sent again needs an id of the
// sender, of the business or of the content: idempotency.ParseKey, NaturalKey, Content.
type Read func(*message.Message) (Message, error)

const (
	pageMessages = 500
	pageBytes    = 1 << 20 // of payloads; a longer message is a page of its own
	yields       = 3       // how often Consume lets other goroutines run before it takes what is ready
)

// Consume subscribes to a topic and receives its messages until ctx ends, then it returns nil,
// or until the subscriber ends the subscription, which is an error. It takes one message, and
// with it those that are ready behind it. It stores them as Receive does, and only then
// acknowledges them. If they cannot be stored it refuses them, so that they are redelivered, and
// takes one, then two, and so on. read may be nil.
//
// If we die here: what was not acknowledged is redelivered. Test: TestConsume.
func (p *Processor) Consume(ctx context.Context, from message.Subscriber, topic string, read Read) error {
	deliveries, err := from.Subscribe(ctx, topic)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	open, end := context.WithCancel(ctx)
	defer end()
	most := pageMessages
	loop.Run(open, p.Log.With("receiver", p.Receiver, "topic", topic), "receive failed, the messages will be redelivered", func(context.Context) (time.Duration, error) {
		page := nextPage(open, deliveries, most)
		if len(page) == 0 {
			end()
			return 0, nil
		}
		_, err := p.receive(ctx, column(page, func(m *message.Message) *incoming { return received(readOne(m, read)) }))
		for _, m := range page {
			if err == nil {
				m.Ack()
			} else {
				m.Nack()
			}
		}
		most = min(pageMessages, 2*most)
		if err != nil {
			most = 1 // so that one that cannot be stored holds up no other
		}
		return 0, err
	})
	if ctx.Err() == nil {
		return fmt.Errorf("consume %s: the subscription ended", topic)
	}
	return nil
}

// nextPage waits for a message, and returns it with those that are ready behind it; none when ctx
// has ended or the channel is closed.
func nextPage(ctx context.Context, messages <-chan *message.Message, most int) (page []*message.Message) {
	select {
	case <-ctx.Done():
	case m, open := <-messages:
		if !open {
			return nil
		}
		page = append(page, m)
		for bytes, idle := len(m.Payload), 0; len(page) < most && bytes < pageBytes && idle < yields; {
			select {
			case m, open = <-messages:
				if !open {
					return page
				}
				page, bytes, idle = append(page, m), bytes+len(m.Payload), 0
			default:
				idle++
				runtime.Gosched() // a subscriber may be about to deliver
			}
		}
	}
	return page
}

func readOne(m *message.Message, read Read) (one Message, err error) {
	if read != nil {
		err = loop.Safely(func() (err error) { one, err = read(m); return err })
	}
	one.ID = cmp.Or(one.ID, m.UUID)
	if one.Payload == nil {
		one.Payload = m.Payload
	}
	if one.Metadata == nil {
		one.Metadata = m.Metadata
	}
	if one.Type == "" && one.OrderingKey == "" && one.Partition == "" {
		one.Type, one.OrderingKey, one.Partition = m.Metadata.Get("type"), m.Metadata.Get("ordering_key"), m.Metadata.Get("partition_key")
	}
	return one, err
}
