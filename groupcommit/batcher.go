package groupcommit

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"
)

// ErrNotReturned is the error of an item whose call panicked.
var ErrNotReturned = errors.New("the call did not return")

const held = 250 * time.Millisecond

// Batcher carries out items together that are asked for at the same moment. While Slots
// calls are under way, items queue; when one ends, the first in the queue takes along
// everything that is queued and fits. It waits for nothing else: an item that comes alone
// is carried out at once. There is no goroutine of its own, and nothing to close.
type Batcher[Q, A any] struct {
	// Slots is how many calls are under way at a time; 1 where it is 0. A call that takes
	// longer than Held counts no more.
	Slots int
	// Most is how many calls are under way at a time, those that take longer included; no
	// bound where it is 0.
	Most int
	// Fit is how many items of a queue one call takes, one at least; all where it is nil.
	Fit func(queue []Q) int
	// Call carries items out, one outcome for each. ctx has the values of the first item's
	// context, and ends with none.
	Call func(ctx context.Context, items []Q) []Outcome[A]
	// Held is how long a call keeps its slot, at most: a call that waits for a lock or for
	// the network goes on, and holds up nobody else. 250 ms where it is 0.
	Held time.Duration
	// MayLeave lets callers whose context ended go while their item is carried out. Their
	// outcome is dropped.
	MayLeave bool

	mu      sync.Mutex
	calls   int // that hold a slot
	all     int // that are under way
	waiting []*item[Q, A]
}

// Outcome is what became of an item.
type Outcome[A any] struct {
	Value A
	Err   error
	// Alone asks for the item to be carried out again, by itself: nothing was done, and
	// another item may be the reason. It counts only where there were several.
	Alone bool
}

type item[Q, A any] struct {
	ctx   context.Context
	of    Q
	alone bool
	told  chan told[Q, A] // has room for one
}

type told[Q, A any] struct {
	leads   bool // the item is to carry out what is queued, itself the first
	outcome Outcome[A]
}

// Do carries out an item and returns what became of it. It returns the error of ctx, and
// nothing was done, if ctx ends while the item is queued.
func (b *Batcher[Q, A]) Do(ctx context.Context, of Q) (A, error) {
	i := &item[Q, A]{ctx: ctx, of: of, told: make(chan told[Q, A], 1)}
	for {
		outcome, err := b.do(i)
		if err != nil {
			return outcome.Value, err
		}
		if !outcome.Alone {
			return outcome.Value, outcome.Err
		}
		i.alone = true
	}
}

func (b *Batcher[Q, A]) do(i *item[Q, A]) (Outcome[A], error) {
	b.mu.Lock()
	b.waiting = append(b.waiting, i)
	b.next()
	b.mu.Unlock()
	var t told[Q, A]
	select {
	case t = <-i.told:
	case <-i.ctx.Done():
		if b.withdraw(i) {
			return Outcome[A]{}, i.ctx.Err()
		}
		if !b.MayLeave {
			t = <-i.told
			break
		}
		select {
		case t = <-i.told: // it may lead others, who would wait for ever
		default:
			return Outcome[A]{}, i.ctx.Err()
		}
	}
	if t.leads {
		b.lead(i)
		t = <-i.told
	}
	return t.outcome, nil
}

// next lets the first of the queue lead, while there is a slot. b.mu is held.
func (b *Batcher[Q, A]) next() {
	for len(b.waiting) > 0 && b.calls < max(1, b.Slots) && (b.Most == 0 || b.all < b.Most) {
		first := b.waiting[0]
		b.waiting = slices.Delete(b.waiting, 0, 1)
		b.calls++
		b.all++
		first.told <- told[Q, A]{leads: true}
	}
}

// take takes what goes together with the first item from the queue.
func (b *Batcher[Q, A]) take(first *item[Q, A]) []*item[Q, A] {
	if first.alone {
		return []*item[Q, A]{first}
	}
	runtime.Gosched() // a goroutine that is about to queue an item goes first
	b.mu.Lock()
	defer b.mu.Unlock()
	all, items := []*item[Q, A]{first}, []Q{first.of}
	for _, i := range b.waiting {
		if i.alone {
			break
		}
		all, items = append(all, i), append(items, i.of)
	}
	n := len(all)
	if b.Fit != nil {
		n = b.Fit(items)
	}
	b.waiting = slices.Delete(b.waiting, 0, n-1)
	return all[:n]
}

// Queued is how many items wait for a call.
func (b *Batcher[Q, A]) Queued() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

// Free is how many calls may begin at once.
func (b *Batcher[Q, A]) Free() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(1, b.Slots) - b.calls
}

func (b *Batcher[Q, A]) withdraw(i *item[Q, A]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.Index(b.waiting, i)
	if at >= 0 {
		b.waiting = slices.Delete(b.waiting, at, at+1)
	}
	return at >= 0
}

// lead carries out an item and what goes together with it, and tells each what became of
// it, also after a panic. It gives the slot back when they are told: what they do next may
// be in the queue then.
func (b *Batcher[Q, A]) lead(first *item[Q, A]) {
	all := b.take(first)
	var outcomes []Outcome[A]
	late := time.AfterFunc(cmp.Or(b.Held, held), func() { b.release(1, 0) })
	defer func() {
		for n, i := range all {
			outcome := Outcome[A]{Err: ErrNotReturned}
			if n < len(outcomes) {
				outcome = outcomes[n]
				outcome.Alone = outcome.Alone && len(all) > 1
			}
			i.told <- told[Q, A]{outcome: outcome}
		}
		slot := 0
		if late.Stop() {
			slot = 1
		}
		runtime.Gosched()
		b.release(slot, 1)
	}()
	items := make([]Q, len(all))
	for n, i := range all {
		items[n] = i.of
	}
	outcomes = b.Call(context.WithoutCancel(all[0].ctx), items)
}

func (b *Batcher[Q, A]) release(calls, all int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls -= calls
	b.all -= all
	b.next()
}
