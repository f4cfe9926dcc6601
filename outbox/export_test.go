package outbox

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Poll is the time between two reads of an empty topic.
func Poll(of message.Subscriber) time.Duration {
	s, _ := of.(*subscriber)
	return s.reader.Poll
}

// SetAckDeadline is called before Subscribe.
func SetAckDeadline(of message.Subscriber, d time.Duration) {
	s, _ := of.(*subscriber)
	s.reader.deadline = d
}
