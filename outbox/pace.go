package outbox

import "time"

// The bounds of a page. What is longer alone than a page may be comes alone.
const (
	pageMessages = 500
	pageBytes    = 1 << 20 // of payloads and metadata

	several = 8  // who have come together, see pause
	company = 32 // for whom it is worth to wait
)

// pace is how many messages the next page may hold, and when it is read. One that is
// read again was not received: it was too much for the time there is, or one of its
// messages was refused. Half of it is tried, down to a single message, so that a
// message that nobody can receive holds up what comes behind it and nothing before.
// What was received makes the next page twice as long.
type pace struct {
	xid             string // the position behind which the last page began
	offset          int64
	limit           int // what it might hold
	messages, bytes int // what it held
	at              time.Time
	took            time.Duration // from the page before, for as many to come
}

// behind is where the last page began, and nowhere before the first.
func (p pace) behind() (xid string, offset int64) {
	if p.xid == "" {
		return "0", -1
	}
	return p.xid, p.offset
}

// again is for the page that was read last, should it come again.
func (p pace) again() int { return max(1, p.messages/2) }

// onward is for any other.
func (p pace) onward() int {
	if p.limit == 0 {
		return pageMessages
	}
	return min(pageMessages, 2*p.limit)
}

// read is the pace after a page that was read at a time.
func (p pace) read(at time.Time, xid string, offset int64, messages, bytes int) pace {
	limit := p.onward()
	if p.xid == xid && p.offset == offset {
		limit = p.again()
	}
	return pace{xid: xid, offset: offset, limit: limit, messages: messages, bytes: bytes, at: at, took: at.Sub(p.at)}
}

// pause is how long to wait behind the page that was read last. Behind a full one
// there is more. Behind any other there is hardly a message yet, and who read that at
// once would receive it by a commit of its own, while the next ones come. So where
// several have come together others are given the time to: as long as company takes
// to come, by how fast these came.
func (p pace) pause() time.Duration {
	switch {
	case p.messages >= p.limit || p.bytes >= pageBytes/2:
		return 0
	case p.messages >= several:
		return min(gatherInterval, company*min(p.took, time.Second)/time.Duration(p.messages))
	default:
		return pollInterval
	}
}
