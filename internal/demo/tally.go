package demo

import "sync/atomic"

// tally counts while the demo runs; the screen shows it and the verdict does
// not rest on it.
type tally struct {
	requests   atomic.Int64 // sent with a key
	unanswered atomic.Int64 // of these: cut, refused or timed out
	turnedAway atomic.Int64 // of these: answered "try again with the same key"
	replays    atomic.Int64 // of these: answered from the record
	reused     atomic.Int64 // of these: another body under a used key, refused
	accepted   atomic.Int64 // charges
	ended      atomic.Int64 // charges
	struck     atomic.Pointer[strikes]
}

func (t *tally) underWay() int64 { return t.accepted.Load() - t.ended.Load() }

func (t *tally) note(done strikes) { t.struck.Store(&done) }

func (t *tally) strikes() strikes {
	if done := t.struck.Load(); done != nil {
		return *done
	}
	return strikes{}
}
