package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// loop is a closed loop: a fixed number of charges is in flight, and the next begins
// when one ends. So a slow subject does not collect a backlog, and all subjects have
// the same number in flight.
type loop struct {
	inFlight int64
	slots    *semaphore.Weighted
	patience time.Duration // until everything that was begun must have ended

	mu        sync.Mutex
	began     map[string]time.Time // of what is in flight
	ended     int
	unknown   int // ends of what was not in flight: something was done twice
	timing    bool
	latencies []time.Duration
}

const drainPatience = 2 * time.Minute

func newLoop(inFlight int) *loop {
	return &loop{
		inFlight: int64(inFlight), slots: semaphore.NewWeighted(int64(inFlight)), patience: drainPatience,
		began: map[string]time.Time{},
	}
}

// begin waits for a free slot. It returns false when ctx ended first.
func (l *loop) begin(ctx context.Context, id string) bool {
	if l.slots.Acquire(ctx, 1) != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began[id] = time.Now()
	return true
}

// end ends a charge.
func (l *loop) end(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.began[id]
	if !ok {
		l.unknown++
		return
	}
	delete(l.began, id)
	l.ended++
	if l.timing {
		l.latencies = append(l.latencies, time.Since(at))
	}
	l.slots.Release(1)
}

// time says whether latencies are kept from now on, and returns how many charges have
// ended.
func (l *loop) time(timing bool) (ended int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timing = timing
	return l.ended
}

// await waits until nothing is in flight.
func (l *loop) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	if err := l.slots.Acquire(ctx, l.inFlight); err != nil {
		return errors.Join(fmt.Errorf("wait for all to end: %w", err), l.check())
	}
	l.slots.Release(l.inFlight)
	return nil
}

// check returns an error unless everything ended once.
func (l *loop) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.began) > 0 || l.unknown > 0 {
		return fmt.Errorf("%d ended, %d did not, %d ended twice", l.ended, len(l.began), l.unknown)
	}
	return nil
}

// senders send, each one charge after the other.
const senders = 64

// drive sends for a while, and measures the part of it after the warm-up. It returns
// when everything that was sent has ended, each by a call of end.
func (l *loop) drive(ctx context.Context, warm, measured time.Duration, use func() usage, send func(ctx context.Context, id string) error) (w window, err error) {
	until, stop := context.WithCancel(ctx)
	defer stop()
	all, sending := errgroup.WithContext(until)
	for range senders {
		all.Go(func() error {
			for {
				id := newID()
				if !l.begin(sending, id) {
					return nil
				}
				if err := send(ctx, id); err != nil { // not interrupted: what was begun ends
					return fmt.Errorf("send %s: %w", id, err)
				}
			}
		})
	}
	err = pause(sending, warm)
	before, began, from := use(), time.Now(), l.time(true)
	err = errors.Join(err, pause(sending, measured))
	w = window{Done: l.time(false) - from, Seconds: time.Since(began).Seconds(), Used: use().minus(before)}
	stop()
	if err := errors.Join(all.Wait(), err); err != nil {
		return w, err
	}
	err = l.await(ctx)
	w.Total = l.ended
	if slices.Sort(l.latencies); len(l.latencies) > 0 {
		w.P50, w.P99 = l.latencies[len(l.latencies)/2], l.latencies[len(l.latencies)*99/100]
	}
	return w, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
