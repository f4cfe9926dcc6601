package outbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// SetPoll sets the pause between two reads of an empty topic. It is called before Subscribe.
func SetPoll(of message.Subscriber, d time.Duration) {
	s, _ := of.(*subscriber)
	s.poll = d
}

// SetAckDeadline is called before Subscribe.
func SetAckDeadline(of message.Subscriber, d time.Duration) {
	s, _ := of.(*subscriber)
	s.deadline = d
}

// Fail lets the polls of a subscriber fail for a time, by an error or, where it is nil, by a refused message.
func Fail(log *slog.Logger, d time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	s := &subscriber{Options: Options{Log: log}, done: ctx}
	for ctx.Err() == nil {
		if err == nil {
			s.ids = []int64{1}
		}
		s.HandleError(nil, false, err)
	}
}
