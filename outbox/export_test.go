package outbox

import (
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
