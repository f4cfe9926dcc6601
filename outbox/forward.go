package outbox

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/payonce/payonce/internal/loop"
)

var errEnded = errors.New("the subscription has ended")

// Forward publishes the messages of a topic, one after the other in their order and each under
// its own id, until ctx ends; then it returns nil. It acknowledges a message when Publish has
// returned nil for it, so a broker receives each at least once. from may be any subscriber.
//
// What Publish refuses is retried, and the first failure of several is logged to slog.Default().
//
// Publish ends when the context of its message does, which is delivered again then.
func Forward(ctx context.Context, from message.Subscriber, topic string, to message.Publisher) error {
	messages, err := from.Subscribe(ctx, topic)
	if err != nil {
		return err
	}
	failing := false
	for m := range messages {
		err := loop.Safely(func() error { return to.Publish(topic, m) })
		if err == nil {
			m.Ack()
			failing = false
			continue
		}
		if !failing {
			slog.ErrorContext(ctx, "publish failed and is retried", "topic", topic, "message_id", m.UUID, "error", err) //nolint:sloglint // the program's
		}
		failing = true
		m.Nack()
		loop.Pause(ctx, afterFailure, nil)
	}
	if ctx.Err() == nil {
		return errEnded
	}
	return nil
}
