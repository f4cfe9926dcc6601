package notify

import (
	"errors"
	"sync"
)

// probes is how many deliveries at a time are tried at a receiver whose last one
// had no answer.
const probes = 4

var errSilent = errors.New("the receiver does not answer, and enough deliveries are trying it")

// queue keeps receivers that do not answer from taking every delivery's place.
// It is a courtesy to the other receivers: nothing is decided by it, and after a
// restart it begins anew.
type queue struct {
	mu    sync.Mutex
	hosts map[string]*host // those with deliveries under way, and the silent ones
}

type host struct {
	underWay int
	silent   bool
}

// enter begins a delivery, or refuses it. leave ends it, and says whether the
// receiver answered, whatever the answer was.
func (q *queue) enter(name string) (leave func(answered bool), err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	h := q.hosts[name]
	if h == nil {
		if q.hosts == nil {
			q.hosts = map[string]*host{}
		}
		h = &host{}
		q.hosts[name] = h
	}
	if h.silent && h.underWay >= probes {
		return nil, errSilent
	}
	h.underWay++
	return func(answered bool) {
		q.mu.Lock()
		defer q.mu.Unlock()
		h.underWay--
		h.silent = !answered
		if h.underWay == 0 && !h.silent {
			delete(q.hosts, name)
		}
	}, nil
}
