package outbox

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// SetAckDeadline is called before Subscribe.
func SetAckDeadline(of message.Subscriber, d time.Duration) {
	s, _ := of.(*subscriber)
	s.reader.deadline = d
}
