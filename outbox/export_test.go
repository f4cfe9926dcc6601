package outbox

import (
	"cmp"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// SetTimes sets, where they are not zero, the pause between two reads of an empty topic and the deadline of
// acknowledgments. It is called before Subscribe.
func SetTimes(of message.Subscriber, poll, deadline time.Duration) {
	s, _ := of.(*subscriber)
	s.poll, s.deadline = cmp.Or(poll, s.poll), cmp.Or(deadline, s.deadline)
}
