package inbox

import (
	"bytes"
	"fmt"
	"maps"
	"sync"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Handover hands messages over to processors of the same process as a page brings
// them: what they have room for is inserted as claimed by them, so nobody has to
// write the row once more to claim it, nor to wait for a poll. Whatever else the
// page brings waits in the inbox, and who could find it there is woken.
//
// It changes when a message is worked on, and who finds that out, and nothing else.
// A message is taken only if a claim would take it now: it is new, nothing of its key
// is open, and nothing parked that blocks. A processor offers no place while older
// messages may wait for one.
//
// It belongs to one subscriber: pages come one after another.
//
// Before anything is handled the processor reads that it is there: nobody tells
// whether a page was committed, and one that was rolled back has taken nothing. Where
// the server is still at it, the processor asks again until a lease has passed.
type Handover struct {
	receivers map[string]*Processor

	mu      sync.Mutex
	refused bool   // the last page: the next one is received without offers
	pages   []page // that were received, and whose transactions may be under way
}

// page is what became of the messages of a page, by processor.
type page map[*Processor]*share

// share is a processor's part of a page.
type share struct {
	run     *run      // of the processor, nil where it does not run
	places  int       // that it has offered
	taken   []claimed // no more than that
	left    []string  // keys of the other messages, new or not
	without bool      // some of those found no place
}

// NewHandover makes one for processors that do not run yet, of different receivers.
// Their Wake is set.
func NewHandover(processors ...*Processor) *Handover {
	h := &Handover{receivers: make(map[string]*Processor, len(processors))}
	for _, p := range processors {
		bell := make(chan struct{}, 1)
		p.Wake, p.room = bell, &room{bell: bell}
		h.receivers[p.Receiver] = p
	}
	return h
}

// Receive is ReceiveTelling for a page of which processors may take messages at once,
// as soon as Ended tells that its transaction has ended.
func (h *Handover) Receive(envelope func(*message.Message) Envelope, told func(Reception)) func(page []*message.Message) error {
	return func(messages []*message.Message) error {
		if len(messages) == 0 {
			return nil
		}
		tx, ok := wsql.TxFromContext(messages[0].Context())
		if !ok {
			return fmt.Errorf("receive message %s: it does not come from an outbox subscriber", messages[0].UUID)
		}
		all, err := deliveriesOf(messages, envelope)
		if err != nil {
			return err
		}
		h.Ended() // who reads a page has ended the one before
		first, again := apart(all)
		p, o := h.offer(first)
		r, rows, err := receivePage(messages[0].Context(), tx, first, again, o)
		if err != nil {
			h.refuse(p)
			return err
		}
		h.hold(p, first, rows)
		r.tell(told)
		return nil
	}
}

// Ended tells that the transaction of every page so far has ended, by its commit or
// not; outbox.NewSubscriberTelling says when. It returns at once. Who stops a
// subscriber calls it once more, for a handler may end after its page's transaction:
// else the places of that page are not offered again.
func (h *Handover) Ended() {
	h.mu.Lock()
	pages := h.pages
	h.pages = nil
	h.mu.Unlock()
	for _, p := range pages {
		for processor, s := range p {
			if s.run == nil || s.run.tell(s) {
				processor.room.ring()
			}
		}
	}
}

// offers are who takes which delivery, and how: one of each for each delivery, the
// lease in microseconds, 0 where nobody does.
type offers struct {
	holders []string
	leases  []int64
	passes  []bool
}

// offer takes places for the deliveries that could fill them: of each key the first.
func (h *Handover) offer(all []delivery) (page, offers) {
	if len(h.receivers) == 0 {
		return nil, offers{}
	}
	h.mu.Lock()
	refused := h.refused
	h.refused = false
	h.mu.Unlock()
	type key struct {
		of   *Processor
		name string
	}
	p, seen, firsts := page{}, map[key]bool{}, make([]bool, len(all))
	for i, d := range all {
		of := h.receivers[d.receiver]
		if of == nil {
			continue
		}
		if p[of] == nil {
			p[of] = &share{}
		}
		if k := (key{of, d.message.OrderingKey}); !seen[k] {
			seen[k], firsts[i] = true, true
			p[of].places++
		}
	}
	for of, s := range p {
		could := s.places
		if refused {
			s.places = 0
		}
		s.run, s.places = of.room.offer(s.places)
		s.without = s.places < could
	}
	o := offers{holders: make([]string, len(all)), leases: make([]int64, len(all)), passes: make([]bool, len(all))}
	offered := map[*Processor]int{}
	for i, d := range all {
		of := h.receivers[d.receiver]
		if firsts[i] && offered[of] < p[of].places {
			offered[of]++
			o.holders[i], o.leases[i], o.passes[i] = of.Holder, of.Policy.Lease.Microseconds(), of.Policy.Parked == Pass
		}
	}
	return p, o
}

// refuse gives back what was offered to a page that nobody received. It may have been
// refused for what was offered, so the next one is received without.
func (h *Handover) refuse(p page) {
	for _, s := range p {
		s.withdraw(s.places)
	}
	h.mu.Lock()
	h.refused = true
	h.mu.Unlock()
}

// hold keeps a page until its transaction has ended, and gives back what it left of
// the places.
func (h *Handover) hold(p page, all []delivery, rows []taken) {
	if len(p) == 0 {
		return
	}
	type name struct{ receiver, message string }
	row := make(map[name]taken, len(rows))
	for _, t := range rows {
		row[name{t.Receiver, t.ID}] = t
	}
	for _, d := range all {
		s := p[h.receivers[d.receiver]]
		if s == nil {
			continue
		}
		if t, ok := row[name{d.receiver, d.message.ID}]; ok {
			s.taken = append(s.taken, asClaimed(d.message, t))
		} else {
			s.left = append(s.left, d.message.OrderingKey)
		}
	}
	for _, s := range p {
		s.withdraw(s.places - len(s.taken))
	}
	h.mu.Lock()
	h.pages = append(h.pages, p)
	h.mu.Unlock()
}

func (s *share) withdraw(places int) {
	if places > 0 {
		s.run.withdraw(places)
		s.places -= places
	}
}

// asClaimed is what a claim of a new row would have returned. Of what is shared with
// other messages of the page, or other receivers, it has copies.
func asClaimed(m Message, t taken) claimed {
	m.Payload, m.Metadata = bytes.Clone(m.Payload), maps.Clone(m.Metadata)
	return claimed{
		Delivery:  Delivery{Message: m, Attempt: 1, row: t.Row, fence: 1, claimed: t.At},
		onReceipt: true, receivedIn: t.In,
	}
}
