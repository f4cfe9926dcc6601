package idempotency

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
)

// DoAll does each of many inputs once, and returns their results in the same
// order. One look finds those that are known. Each of the others is a commit of
// its own, so one that fails, or panics, fails alone: its error is in its result.
// The same input twice in one call is done once.
//
// If we die here: some inputs are done and the others are not. The same call does
// the rest. Test: TestDoAll/what_a_call_left_undone_is_done_by_the_next.
func (o Once[In, Out]) DoAll(ctx context.Context, ins []In) []Result[Out] {
	results := make([]Result[Out], len(ins))
	asks := make([]asked[In], len(ins))
	var keys []Key
	for i, in := range ins {
		results[i] = o.alone("", func() (result Result[Out]) {
			asks[i], result.Err = o.ask(in)
			return result
		})
		if results[i].Err == nil {
			keys = append(keys, asks[i].key)
		}
	}
	if len(keys) == 0 {
		return results
	}
	all, err := lookAll(ctx, o.Receiver.DB, keys)
	known := map[string]Looked{}
	for i, l := range all {
		known[keys[i].Value] = l
	}
	var work errgroup.Group
	work.SetLimit(o.concurrency())
	for i, ask := range asks {
		if results[i].Err == nil && err != nil {
			results[i] = Result[Out]{Key: ask.key.Value, Err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
		}
		if results[i].Err != nil {
			continue
		}
		looked := known[ask.key.Value]
		if looked.found && looked.synchronous {
			looked = Looked{} // each is confirmed with the standby
		}
		if looked.found {
			results[i] = o.alone(ask.key.Value, func() Result[Out] {
				return o.do(ask, func(Decide) (Outcome, error) { return replay(looked.record, ask.request, func(Record) {}) })
			})
			continue
		}
		results[i] = Result[Out]{Key: ask.key.Value, Err: errNoReturn} // until it returns
		work.Go(func() error {
			results[i] = o.alone(ask.key.Value, func() Result[Out] { return o.begin(ctx, ask, looked.now) })
			return nil
		})
	}
	_ = work.Wait() // each has its error in its result
	return results
}

// errNoReturn is the error of a work that ended its goroutine.
var errNoReturn = errors.New("the work did not return")

// alone makes a panic end in the result of the one input that it comes from.
func (o Once[In, Out]) alone(key string, do func() Result[Out]) (result Result[Out]) {
	defer func() {
		if cause := recover(); cause != nil {
			result = Result[Out]{Key: key, Err: fmt.Errorf("panic in %s: %v\n%s", o.Operation, cause, debug.Stack())}
		}
	}()
	return do()
}

// begin is do of a key that was free at a time.
func (o Once[In, Out]) begin(ctx context.Context, ask asked[In], free time.Time) Result[Out] {
	return o.do(ask, func(decide Decide) (Outcome, error) {
		if err := context.Cause(ctx); err != nil {
			return Outcome{}, fmt.Errorf("%w: %w", ErrUnavailable, err) // not begun
		}
		return o.Receiver.receive(ctx, ask.key, ask.request, decide, func(Record) {}, free)
	})
}

func (o Once[In, Out]) concurrency() int {
	if o.Concurrency <= 0 {
		return 8
	}
	return o.Concurrency
}
