package webhook

import (
	"context"
	"sync"
	"time"
)

const (
	// probes is how many deliveries at a time are tried at a receiver that kept the
	// last one waiting.
	probes = 4
	// turn is how long a delivery waits for one of the same receiver to end. A
	// receiver that answers at once has ended many by then; beside another it costs
	// others no more than this.
	turn = 200 * time.Millisecond
)

// receiver is a merchant at a host: of two merchants at one host neither waits
// for the other.
type receiver struct{ merchant, host string }

// queue keeps receivers that do not answer from taking every delivery's place.
// It is a courtesy to the other receivers: nothing is decided by it, and after a
// restart it begins anew.
type queue struct {
	share int // deliveries at a time to one receiver, 0: any number
	turn  time.Duration

	mu    sync.Mutex
	lines map[receiver]*line // those with deliveries in them, and the silent ones
}

// line is one receiver's deliveries, under way and waiting for their turn.
type line struct {
	places chan struct{} // holds one for each that is under way; nil: any number is
	length int
	silent bool
}

// enter begins a delivery, or refuses it with a [BusyError] or the error of the
// context. leave ends it, and says whether the receiver answered in time,
// whatever the answer was.
func (q *queue) enter(ctx context.Context, r receiver) (leave func(answered bool), err error) {
	l, ok := q.join(r)
	if !ok {
		return nil, &BusyError{Reason: "the receiver does not answer, and enough deliveries are trying it"}
	}
	if l.places == nil {
		return func(answered bool) { q.leave(r, l, answered) }, nil
	}
	patience := time.NewTimer(q.turn)
	defer patience.Stop()
	select {
	case l.places <- struct{}{}:
		return func(answered bool) {
			<-l.places
			q.leave(r, l, answered)
		}, nil
	case <-patience.C:
		err = &BusyError{Reason: "enough deliveries to the receiver are under way"}
	case <-ctx.Done():
		err = ctx.Err()
	}
	q.part(r, l)
	return nil, err
}

func (q *queue) join(r receiver) (*line, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[r]
	if l == nil {
		if q.lines == nil {
			q.lines = map[receiver]*line{}
		}
		l = &line{}
		if q.share > 0 {
			l.places = make(chan struct{}, q.share)
		}
		q.lines[r] = l
	}
	if l.silent && l.length >= probes {
		return nil, false
	}
	l.length++
	return l, true
}

func (q *queue) leave(r receiver, l *line, answered bool) {
	q.mu.Lock()
	l.silent = !answered
	q.mu.Unlock()
	q.part(r, l)
}

func (q *queue) part(r receiver, l *line) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l.length--
	if l.length == 0 && !l.silent {
		delete(q.lines, r)
	}
}
