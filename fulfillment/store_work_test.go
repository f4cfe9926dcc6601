package fulfillment_test

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
)

// What the workers do.

// holder is one process that takes one message.
type holder struct {
	took  chan inbox.Delivery
	ended chan struct{}

	// Set before ended is closed.
	err  error
	died bool
}

// death is that of a holder's process, and when it has taken effect.
type death struct{ strikes, struck chan struct{} }

// strike returns once the handler can send nothing more.
func (d death) strike() {
	close(d.strikes)
	<-d.struck
}

// start starts a holder. Its death ends the context of its handler, so that it
// sends nothing more; it says nothing to the inbox either, as if its process were
// gone. What it commits is committed: no commit is cut in two here.
func (m *machine) start(next trouble, end death) *holder {
	h := &holder{took: make(chan inbox.Delivery, 1), ended: make(chan struct{})}
	m.bank.expect(next)
	ctx, cancel := context.WithCancel(m.Context())
	p := &inbox.Processor{
		DB: m.db, Receiver: m.receiver, Holder: "test", Concurrency: 1,
		Handle: func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
			cancel() // it takes no other one
			h.took <- d
			ctx, kill := context.WithCancel(ctx)
			defer kill()
			stopped := make(chan struct{})
			defer close(stopped)
			go func() {
				select {
				case <-end.strikes:
					kill()
					close(end.struck)
				case <-stopped:
				}
			}()
			result, err := m.handle(ctx, d)
			h.err = err
			select {
			case <-end.strikes:
				h.died = true
				runtime.Goexit()
			default:
			}
			return result, err
		},
		Policy: inbox.Policy{
			Lease: time.Hour, MaxAttempts: 1000, GiveUpAfter: 100 * time.Hour,
			BackoffBase: time.Microsecond, BackoffCap: 2 * time.Microsecond, Parked: inbox.Pass,
		},
		Poll: time.Millisecond, Drain: await.Stall, Log: slog.New(slog.DiscardHandler),
	}
	go func() {
		defer close(h.ended)
		defer cancel()
		p.Run(ctx)
	}()
	return h
}

// taken is the message that a holder took. It must be one that is to be taken: the
// oldest open one of a charge of which nobody holds any.
func (m *machine) taken(t *rapid.T, h *holder) *parcel {
	d := await.Receive(t, "a message that is taken", h.took)
	m.tally.handled.Add(1)
	for _, p := range m.parcels {
		if p.id != d.ID {
			continue
		}
		if !m.mayBeTaken(p) {
			t.Fatalf("a message of %s was taken that must not be: %+v", p.charge, p)
		}
		return p
	}
	t.Fatalf("a message was taken that is not the model's: %+v", d)
	return nil
}

func (m *machine) mayBeTaken(p *parcel) bool {
	if p.standing != waiting && p.standing != lapsed {
		return false
	}
	for _, other := range m.parcels {
		if other == p || other.charge != p.charge {
			continue
		}
		switch other.standing {
		case orphaned, lapsed: // whoever held it, holds it until somebody takes it over
			return false
		case waiting:
			if p.standing == waiting && other.number < p.number {
				return false
			}
		case undelivered, finished:
		}
	}
	return true
}

func (m *machine) workable() bool {
	return slices.ContainsFunc(m.parcels, m.mayBeTaken)
}

func (m *machine) charge(t *rapid.T, p *parcel) *modelCharge {
	for _, c := range m.charges {
		if c.id == p.charge {
			return c
		}
	}
	t.Fatalf("a message is about %s, which nobody ordered", p.charge)
	return nil
}

// work has one message handled. Where nothing is in the way it is done then, and
// its charge too.
func (m *machine) work(t *rapid.T, next trouble) {
	if !m.workable() {
		t.Skip("nothing to do")
	}
	h := m.start(next, death{})
	p := m.taken(t, h)
	await.Receive(t, "the end of the handler", h.ended)
	disturbed := next.kind != ""
	switch kind(h.err) {
	case "done":
		p.standing = finished
	case "waits":
		if !disturbed {
			t.Fatalf("a handler that nothing disturbed waits: %v", h.err)
		}
		p.standing = waiting
	default:
		t.Fatalf("a handler answered %v", h.err)
	}
	m.observe(t, m.charge(t, p), kind(h.err) != "done")
}

// workDisturbed loses or breaks one of the provider's answers.
func (m *machine) workDisturbed(t *rapid.T) {
	m.tally.disturbed.Add(1)
	m.work(t, trouble{
		kind: rapid.SampledFrom([]string{cutBefore, cutAfter, broken}).Draw(t, "trouble"),
		call: drawCall(t),
	})
	if rapid.IntRange(0, 2).Draw(t, "keys are forgotten") == 0 {
		m.bank.forgetKeys()
	}
}

// drawCall is mostly one of the first calls: most deliveries make no more.
func drawCall(t *rapid.T) int {
	return rapid.SampledFrom([]int{1, 1, 1, 2, 2, 3, 4}).Draw(t, "call")
}

// die has a holder die in the middle of a delivery, or at its end. The message is
// nobody's until the lease ends.
func (m *machine) die(t *rapid.T) {
	if !m.workable() {
		t.Skip("nothing to do")
	}
	end := death{strikes: make(chan struct{}), struck: make(chan struct{})}
	next := trouble{
		kind: rapid.SampledFrom([]string{diesBefore, diesAfter}).Draw(t, "when"), call: drawCall(t),
		do: end.strike,
	}
	h := m.start(next, end)
	p := m.taken(t, h)
	await.Receive(t, "the end of the handler", h.ended)
	if h.died {
		m.tally.deaths.Add(1)
		p.standing = orphaned
	} else if kind(h.err) == "done" { // it came to no such call
		p.standing = finished
	} else {
		t.Fatalf("a handler answered %v", h.err)
	}
	m.observe(t, m.charge(t, p), h.died)
}

// lapse ends the leases of the dead.
func (m *machine) lapse(t *rapid.T) {
	m.exec(t, `
update inbox
   set due_at = clock_timestamp() - interval '1 day'
 where receiver = $1
   and status = 'running'`, m.receiver)
	for _, p := range m.parcels {
		if p.standing == orphaned {
			p.standing = lapsed
		}
	}
}

// zombie lets a holder hang in a call for longer than its lease. Somebody else
// takes over and finishes; then the first one wakes up and goes on.
func (m *machine) zombie(t *rapid.T) {
	if !m.workable() {
		t.Skip("nothing to do")
	}
	hanging, release := make(chan struct{}), make(chan struct{})
	next := trouble{
		kind: rapid.SampledFrom([]string{hangs, hangsAfter}).Draw(t, "where"), call: drawCall(t),
		do: func() {
			close(hanging)
			select {
			case <-release:
			case <-m.Context().Done():
			}
		},
	}
	first := m.start(next, death{})
	p := m.taken(t, first)
	await.True(t, "the handler hangs or ends", func() bool { return isClosed(hanging) || isClosed(first.ended) })
	if !isClosed(hanging) { // it came to no such call
		if kind(first.err) != "done" {
			t.Fatalf("a handler answered %v", first.err)
		}
		p.standing = finished
		m.observe(t, m.charge(t, p), false)
		return
	}
	m.tally.zombies.Add(1)
	p.standing = orphaned
	m.lapse(t)
	for p.standing != finished { // others may be taken first
		m.work(t, trouble{})
	}
	close(release)
	await.Receive(t, "the end of the zombie", first.ended)
	if answer := kind(first.err); answer != "done" && answer != "lost" {
		t.Fatalf("the zombie answered %v", first.err)
	}
	m.observe(t, m.charge(t, p), false)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
