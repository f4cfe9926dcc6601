package inbox

import "time"

// NeverLookFully lets the next claims of a processor begin where the first one has found
// the oldest open message.
func NeverLookFully(p *Processor) {
	r, _ := p.state()
	r.dueFrom = time.Unix(0, 0)
	r.scannedAt = time.Now().Add(24 * time.Hour)
}

// Claims returns whether a claim of a processor is in progress and has slots that it has not
// used.
func Claims(p *Processor) bool {
	r, _ := p.state()
	r.slots.mu.Lock()
	defer r.slots.mu.Unlock()
	return r.slots.claiming > 0
}

// HoldsBack returns whether a processor knows of messages that are held back.
func HoldsBack(p *Processor) bool {
	r, _ := p.state()
	return r.slots.holdsBack()
}
