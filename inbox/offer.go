package inbox

import (
	"slices"
	"sync"
)

// room is where pages find places of a processor, while it runs.
type room struct {
	bell chan struct{} // the processor's Wake

	mu  sync.Mutex
	run *run
}

// open lets a run offer its places, or nobody.
func (o *room) open(r *run) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.run = r
}

// offer takes at most n free places for messages that are about to be received. Each
// is given back, or told of.
func (o *room) offer(n int) (*run, int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.run == nil {
		return nil, 0
	}
	return o.run, o.run.offer(n)
}

func (o *room) ring() {
	select {
	case o.bell <- struct{}{}:
	default: // it rings already
	}
}

// offering is the state of a run towards pages, under its lock.
type offering struct {
	offered    int       // places that pages have, or what they took that is not started
	told       []claimed // by pages that have ended, and is not looked for yet
	confirming []claimed // is looked for

	stopping  bool // nothing is offered, and what was taken is given back
	abandoned bool // nor is that waited for any more

	behind  bool            // the last claim may have left messages for which it had no place
	awaited map[string]bool // keys of what was taken on receipt and has something behind it
}

// offer takes free places, unless older messages may wait for them.
func (r *run) offer(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping || r.behind {
		return 0
	}
	n = r.more(n)
	r.offered += n
	r.handlers.Add(n) // while the loop runs: nobody waits for them yet
	return n
}

// withdraw gives back places that a page had and does not need.
func (r *run) withdraw(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.abandoned {
		r.settled(n)
		r.free(n)
	}
}

// settled ends the waiting for what was offered.
func (r *run) settled(n int) {
	r.offered -= n
	r.handlers.Add(-n)
}

// abandon ends the waiting for all of it: what was taken is taken again when its
// lease ends.
func (r *run) abandon() {
	r.abandoned = true
	r.settled(r.offered)
}

// tell says what became of a page whose transaction has ended, and answers whether
// it has left what a claim could find.
func (r *run) tell(s *share) (wake bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.abandoned {
		return true // whoever runs next
	}
	if len(s.taken) > 0 {
		r.told = append(r.told, s.taken...)
		select {
		case r.arrived <- struct{}{}:
		default: // it is looked for already
		}
	}
	keys := make(map[string]bool)
	if len(s.left) > 0 {
		for _, h := range r.held {
			keys[h.message.OrderingKey] = true
		}
		for _, c := range slices.Concat(r.told, r.confirming) {
			keys[c.OrderingKey] = true
		}
	}
	wake = s.without
	for _, key := range s.left {
		if keys[key] {
			r.awaited[key] = true // its end is worth a claim
		} else {
			wake = true
		}
	}
	return wake
}

// isAwaited tells, once, whether something waits behind a message that has ended.
// r.mu is held.
func (r *run) isAwaited(c claimed) bool {
	awaited := r.awaited[c.OrderingKey]
	delete(r.awaited, c.OrderingKey)
	return awaited
}

func (r *run) isBehind() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.behind
}

func (r *run) setBehind(behind bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.behind = behind
}
