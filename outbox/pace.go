package outbox

// The bounds of a page. What is longer alone than a page may be comes alone.
const (
	pageMessages = 500
	pageBytes    = 1 << 20 // of payloads and metadata
)

// pace is how many messages the next page may hold. One that is read again was not
// received: it was too much for the time there is, or one of its messages was
// refused. Half of it is tried, down to a single message, so that a message that
// nobody can receive holds up what comes behind it and nothing before. What was
// received makes the next page twice as long.
type pace struct {
	xid             string // the position behind which the last page began
	offset          int64
	limit, messages int // what it might hold, and what it held
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

// read is the pace after a page.
func (p pace) read(xid string, offset int64, messages int) pace {
	limit := p.onward()
	if p.xid == xid && p.offset == offset {
		limit = p.again()
	}
	return pace{xid: xid, offset: offset, limit: limit, messages: messages}
}
