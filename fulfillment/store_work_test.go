package fulfillment_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
)

// holder is a worker that handles one message.
type holder struct {
	took  chan *inbox.Delivery
	ended chan struct{}

	// Set before ended is closed.
	err  error
	died bool
}

// death is that of a holder, and when it has taken effect.
type death struct{ strikes, struck chan struct{} }

// strike returns once the handler can send nothing more.
func (d death) strike() {
	close(d.strikes)
	<-d.struck
}

// start starts a holder. Its death ends the context of its handler, so that it sends
// nothing more; it does not end its claim either, as if its process were gone. What it
// commits is committed: no commit is cut in two here.
func (m *machine) start(next fault, end death) *holder {
	h := &holder{took: make(chan *inbox.Delivery, 1), ended: make(chan struct{})}
	m.provider.expect(next)
	ctx, cancel := context.WithCancel(m.t.Context())
	p := processor(m.db, m.receiver, func(ctx context.Context, d *inbox.Delivery) error {
		cancel() // it claims no other message
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
		err := m.handle(ctx, d)
		h.err = err
		select {
		case <-end.strikes:
			h.died = true
			runtime.Goexit()
		default:
		}
		return err
	}, func(o *inbox.Options) {
		o.Policy.DeadLetters = inbox.Pass
		o.Policy.MaxAttempts, o.Policy.GiveUpAfter = 1000, 100*time.Hour
		o.Policy.BackoffBase, o.Policy.BackoffCap = time.Microsecond, 2*time.Microsecond
	})
	go func() {
		defer close(h.ended)
		defer cancel()
		_ = p.Run(ctx)
	}()
	return h
}

// claimed is the message that a holder has claimed.
func (m *machine) claimed(t *rapid.T, h *holder) *message {
	d := await.Receive(t, "a claim", h.took)
	m.count.handled.Add(1)
	i := slices.IndexFunc(m.messages, func(p *message) bool { return p.id == d.ID && p.state == waiting })
	if i < 0 {
		t.Fatalf("a message was claimed that must not be: %+v", d)
	}
	return m.messages[i]
}

// workable reports whether a message may be claimed: no dead worker holds one of its charge.
func (m *machine) workable() bool {
	return slices.ContainsFunc(m.messages, func(p *message) bool {
		return p.state == waiting && !slices.ContainsFunc(m.messages, func(other *message) bool {
			return other.key == p.key && other.state == orphaned
		})
	})
}

// work has one message handled. A delivery that nothing disturbs is done, and so is its
// charge.
func (m *machine) work(t *rapid.T, next fault) {
	if !m.workable() {
		t.Skip("nothing to do")
	}
	h := m.start(next, death{})
	p := m.claimed(t, h)
	await.Receive(t, "the end of the handler", h.ended)
	end := endOf(h.err)
	if end == "done" {
		p.state = finished
	} else if end != "waits" || next.answer == nil {
		t.Fatalf("a handler returned %v", h.err)
	}
	m.observe(t, p, end != "done")
}

// drawCall is mostly one of the first calls: most deliveries make no more.
func drawCall(t *rapid.T) int {
	return rapid.SampledFrom([]int{1, 1, 1, 2, 2, 3, 4}).Draw(t, "call")
}

// workDisturbed loses or breaks one of the provider's answers.
func (m *machine) workDisturbed(t *rapid.T) {
	m.count.disturbed.Add(1)
	answers := map[string]http.HandlerFunc{
		"cut before": cut, "cut after": m.provider.cutAfter, "500": m.provider.under(failsBefore, m.provider.sandbox.ServeHTTP),
	}
	m.work(t, fault{drawCall(t), "", answers[rapid.SampledFrom([]string{"cut before", "cut after", "500"}).Draw(t, "fault")]})
	if rapid.IntRange(0, 2).Draw(t, "keys are forgotten") == 0 {
		m.forgetKeys(t)
	}
}

// die ends a holder in the middle of a delivery. Its message is orphaned until the lease
// ends.
func (m *machine) die(t *rapid.T) {
	if !m.workable() {
		t.Skip("nothing to do")
	}
	end := death{strikes: make(chan struct{}), struck: make(chan struct{})}
	dies := meanwhile(end.strike, cut)
	if rapid.Bool().Draw(t, "after the effect") {
		dies = func(w http.ResponseWriter, r *http.Request) {
			m.provider.sandbox.ServeHTTP(httptest.NewRecorder(), r)
			end.strike()
			cut(w, r)
		}
	}
	h := m.start(fault{drawCall(t), "", dies}, end)
	p := m.claimed(t, h)
	await.Receive(t, "the end of the handler", h.ended)
	switch {
	case h.died:
		m.count.deaths.Add(1)
		p.state = orphaned
	case endOf(h.err) == "done": // it made no such call
		p.state = finished
	default:
		t.Fatalf("a handler returned %v", h.err)
	}
	m.observe(t, p, h.died)
}

// zombie lets a holder hang in a call for longer than its lease. Another worker takes over
// and finishes; then the first one continues.
func (m *machine) zombie(t *rapid.T) {
	if !m.workable() {
		t.Skip("nothing to do")
	}
	hanging, release := make(chan struct{}), make(chan struct{})
	hangs := func() {
		close(hanging)
		select {
		case <-release:
		case <-m.t.Context().Done():
		}
	}
	sandbox := m.provider.sandbox.ServeHTTP
	answer := meanwhile(hangs, sandbox)
	if rapid.Bool().Draw(t, "after the effect") {
		answer = func(w http.ResponseWriter, r *http.Request) {
			answered := httptest.NewRecorder()
			sandbox(answered, r)
			hangs()
			w.WriteHeader(answered.Code)
			_, _ = answered.Body.WriteTo(w)
		}
	}
	first := m.start(fault{drawCall(t), "", answer}, death{})
	p := m.claimed(t, first)
	await.True(t, "the handler hangs or ends", func() bool { return isClosed(hanging) || isClosed(first.ended) })
	if !isClosed(hanging) { // it made no such call
		if endOf(first.err) != "done" {
			t.Fatalf("a handler returned %v", first.err)
		}
		p.state = finished
		m.observe(t, p, false)
		return
	}
	m.count.zombies.Add(1)
	p.state = orphaned
	m.endLeases(t)
	for p.state != finished { // other messages may be claimed first
		m.work(t, fault{})
	}
	close(release)
	await.Receive(t, "the end of the zombie", first.ended)
	if end := endOf(first.err); end != "done" && end != "lost" {
		t.Fatalf("the zombie returned %v", first.err)
	}
	m.observe(t, p, false)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
