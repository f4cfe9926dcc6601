package outbox

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/payonce/payonce/internal/loop"
)

var errEnded = errors.New("the subscription has ended")

// Forward publishes the messages of a topic, in their order and each under its own id, until
// ctx ends; then it returns nil. It acknowledges a message when Publish has returned nil for
// it, so a broker receives each at least once. from may be any subscriber. After a failure it
// publishes one message alone, and with each success twice as many at a time.
//
// Publish ends when the context of its messages does, as they are delivered again then.
func Forward(ctx context.Context, from message.Subscriber, topic string, to message.Publisher) error {
	messages, err := from.Subscribe(ctx, topic)
	if err != nil {
		return err
	}
	most := pageMessages
	for first := range messages {
		page := ready(first, messages, most)
		err := loop.Safely(func() error { return to.Publish(topic, page...) })
		if refuse, ok := first.Context().Value(refusal{}).(context.CancelCauseFunc); ok && err != nil {
			refuse(err)
		}
		late := first.Context().Err() != nil // what it published is delivered again
		for _, m := range page {
			if err == nil {
				m.Ack()
			} else {
				m.Nack()
			}
		}
		most = min(pageMessages, 2*most)
		if err != nil || late {
			most = 1
		}
		if err != nil {
			loop.Pause(ctx, afterFailure, nil)
		}
	}
	if ctx.Err() == nil {
		return errEnded
	}
	return nil
}

// ready returns a message and those that are ready behind it.
func ready(first *message.Message, messages <-chan *message.Message, most int) []*message.Message {
	page := []*message.Message{first}
	for len(page) < most {
		select {
		case m, open := <-messages:
			if open {
				page = append(page, m)
				continue
			}
		default:
		}
		break
	}
	return page
}
