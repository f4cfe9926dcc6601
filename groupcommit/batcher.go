package groupcommit

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// Batcher carries out items in batches. While a call is in flight, items queue; when it ends, or after
// 50 ms, the next call takes everything that is queued and fits. An item that finds no call in flight is carried out as
// soon as the goroutines that are ready to run have run: a batcher never waits for more items.
//
// The zero value with Call and Slots set is ready for use. A batcher has no goroutine while nothing is queued
// or in flight, and nothing to close.
type Batcher[Q, A any] struct {
	// Call carries out items and returns one result for each. ctx has the values of the first item's
	// context, and does not end.
	Call func(ctx context.Context, items []Q) []Result[A]
	// Slots bounds the calls in flight: each occupies a place before it takes its items. Several batchers may share it.
	Slots chan struct{}
	// Fit is how many items of the queue one call takes, at least one; all where nil.
	Fit func(queue []Q) int

	nextAfter time.Duration // how long a call delays the next one, at most; 50 ms where 0
	mu        sync.Mutex
	runs      bool // a goroutine begins calls
	queue     []*item[Q, A]
}

// Result is the result of an item.
type Result[A any] struct {
	Value A
	Err   error
}

type item[Q, A any] struct {
	ctx    context.Context
	value  Q
	result chan Result[A] // buffered
}

// Do carries out an item and returns its result. If ctx ends while the item is queued, Do returns the error
// of ctx, and the item has no effect. If ctx ends later, or the call panics, the error is ErrUnknown, wrapped.
func (b *Batcher[Q, A]) Do(ctx context.Context, value Q) (A, error) {
	i := &item[Q, A]{ctx: ctx, value: value, result: make(chan Result[A], 1)}
	b.mu.Lock()
	b.queue = append(b.queue, i)
	if !b.runs {
		b.runs = true
		go b.run()
	}
	b.mu.Unlock()
	select {
	case r := <-i.result:
		return r.Value, r.Err
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.Index(b.queue, i)
	if at < 0 {
		return *new(A), fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	}
	b.queue = slices.Delete(b.queue, at, at+1)
	return *new(A), ctx.Err()
}

// run calls until nothing is queued. The next call begins when this one ends, or after nextAfter.
func (b *Batcher[Q, A]) run() {
	for {
		for range 2 { // goroutines that run may queue items, or make others ready that do
			runtime.Gosched()
		}
		b.Slots <- struct{}{}
		items, values := b.take()
		if len(items) == 0 {
			<-b.Slots
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { <-b.Slots }()
			for n, r := range b.carryOut(items[0].ctx, values) {
				items[n].result <- r
			}
		}()
		select {
		case <-done:
		case <-time.After(cmp.Or(b.nextAfter, 50*time.Millisecond)):
		}
	}
}

// take removes the items of the next call from the queue. If there are none, run ends.
func (b *Batcher[Q, A]) take() (items []*item[Q, A], values []Q) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.queue)
	values = make([]Q, n)
	for at, i := range b.queue {
		values[at] = i.value
	}
	b.runs = n > 0
	if n > 0 && b.Fit != nil {
		n = b.Fit(values)
	}
	items = slices.Clone(b.queue[:n])
	b.queue = slices.Delete(b.queue, 0, n)
	return items, values[:n]
}

// carryOut calls Call, which may panic.
func (b *Batcher[Q, A]) carryOut(ctx context.Context, items []Q) (results []Result[A]) {
	defer func() {
		if cause := recover(); cause != nil {
			results = slices.Repeat([]Result[A]{{Err: fmt.Errorf("%w: panic: %v\n%s", ErrUnknown, cause, debug.Stack())}}, len(items))
		}
	}()
	return b.Call(context.WithoutCancel(ctx), items)
}
