package groupcommit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// ErrNotReturned is the error of an item, wrapped, whose call panicked.
var ErrNotReturned = errors.New("the call did not return")

const defaultHeld = 250 * time.Millisecond

// Batcher carries out items in batches. While Slots calls are in flight, items queue; when
// one ends, the next call takes everything that is queued and fits. An item that finds a
// free slot is carried out at once: a batcher never waits for more items.
//
// The zero value with Call set is ready for use. A batcher has no goroutine while nothing
// is queued or in flight, and nothing to close.
type Batcher[Q, A any] struct {
	// Call carries out items and returns one outcome for each. ctx has the values of the
	// first item's context, and does not end.
	Call func(ctx context.Context, items []Q) []Outcome[A]
	// Slots is how many calls are in flight at a time; 1 where 0. A call that takes longer
	// than Held no longer counts.
	Slots int
	// Most is how many calls are in flight at a time, those longer than Held included;
	// unbounded where 0.
	Most int
	// Held is how long a call keeps its slot, at most, so that one that waits for a lock or
	// for the network delays no other. 250 ms where 0.
	Held time.Duration
	// Fit is how many items of the queue one call takes, at least one; all where nil.
	Fit func(queue []Q) int
	// MayLeave lets a caller whose context ends return while its item is carried out. The
	// outcome is dropped.
	MayLeave bool

	mu    sync.Mutex
	slots int // calls that hold a slot
	calls int // calls in flight
	queue []*item[Q, A]
}

// Outcome is the result of an item.
type Outcome[A any] struct {
	Value A
	Err   error
	// Alone asks for the item to be carried out again, individually: it had no effect, and
	// another item of the call may be the reason. A call of one item is not repeated.
	Alone bool
}

type item[Q, A any] struct {
	ctx    context.Context
	value  Q
	alone  bool
	result chan Outcome[A] // buffered
}

// Do carries out an item and returns its result. If ctx ends while the item is queued, Do
// returns the error of ctx, and the item has no effect. If the call panics, Do returns
// ErrNotReturned, and the effect is unknown.
func (b *Batcher[Q, A]) Do(ctx context.Context, value Q) (A, error) {
	i := &item[Q, A]{ctx: ctx, value: value, result: make(chan Outcome[A], 1)}
	for {
		o, err := b.do(i)
		if err != nil || !o.Alone {
			return o.Value, cmp.Or(err, o.Err)
		}
		i.alone = true
	}
}

func (b *Batcher[Q, A]) do(i *item[Q, A]) (Outcome[A], error) {
	b.mu.Lock()
	b.queue = append(b.queue, i)
	b.dispatch()
	b.mu.Unlock()
	select {
	case o := <-i.result:
		return o, nil
	case <-i.ctx.Done():
		if b.withdraw(i) || b.MayLeave {
			return Outcome[A]{}, i.ctx.Err()
		}
		return <-i.result, nil
	}
}

// dispatch starts calls while there are items and slots; b.mu is held. A call takes its
// items when its goroutine runs, so callers that are about to queue an item join it.
func (b *Batcher[Q, A]) dispatch() {
	for range b.queue {
		if b.slots >= max(1, b.Slots) || b.Most > 0 && b.calls >= b.Most {
			return
		}
		b.slots++
		b.calls++
		go b.call()
	}
}

// take removes the items of the next call from the queue.
func (b *Batcher[Q, A]) take() []*item[Q, A] {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		return nil
	}
	n := slices.IndexFunc(b.queue, func(i *item[Q, A]) bool { return i.alone })
	switch {
	case n < 0:
		n = len(b.queue)
	case n == 0:
		n = 1
	}
	if b.Fit != nil {
		n = b.Fit(values(b.queue[:n]))
	}
	items := slices.Clone(b.queue[:n])
	b.queue = slices.Delete(b.queue, 0, n)
	return items
}

// call carries out what is queued, and releases its slot when the results are delivered:
// what the callers do next may then join the next call.
func (b *Batcher[Q, A]) call() {
	late := time.AfterFunc(cmp.Or(b.Held, defaultHeld), func() { b.release(1, 0) })
	items := b.take()
	if len(items) > 0 {
		outcomes := b.carryOut(items)
		for n, i := range items {
			o := outcomes[n]
			o.Alone = o.Alone && len(items) > 1
			i.result <- o
		}
	}
	slot := 0
	if late.Stop() {
		slot = 1
	}
	b.release(slot, 1)
}

func (b *Batcher[Q, A]) carryOut(items []*item[Q, A]) (outcomes []Outcome[A]) {
	defer func() {
		if cause := recover(); cause != nil {
			outcomes = slices.Repeat([]Outcome[A]{{Err: fmt.Errorf("%w: panic: %v\n%s", ErrNotReturned, cause, debug.Stack())}}, len(items))
		}
	}()
	return b.Call(context.WithoutCancel(items[0].ctx), values(items))
}

func (b *Batcher[Q, A]) release(slots, calls int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slots -= slots
	b.calls -= calls
	b.dispatch()
}

// Load returns how many items are queued and how many calls hold a slot.
func (b *Batcher[Q, A]) Load() (queued, inFlight int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue), b.slots
}

// withdraw removes an item from the queue; false: a call has taken it.
func (b *Batcher[Q, A]) withdraw(i *item[Q, A]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.Index(b.queue, i)
	if at >= 0 {
		b.queue = slices.Delete(b.queue, at, at+1)
	}
	return at >= 0
}

func values[Q, A any](items []*item[Q, A]) []Q {
	all := make([]Q, len(items))
	for n, i := range items {
		all[n] = i.value
	}
	return all
}
