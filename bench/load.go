package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// load is a closed loop: a fixed number of charges is in flight, and the next begins
// when one ends. So a slow program does not collect a backlog, and all programs have
// the same number in flight.
type load struct {
	inFlight int64
	slots    *semaphore.Weighted

	mu        sync.Mutex
	began     map[string]time.Time // of what is in flight
	ended     int
	unknown   int // ends of what was not in flight: something was done twice
	timing    bool
	latencies []time.Duration
}

func newLoad(inFlight int) *load {
	n := int64(max(1, inFlight))
	return &load{inFlight: n, slots: semaphore.NewWeighted(n), began: map[string]time.Time{}}
}

// window is what was seen while it was measured.
type window struct {
	done     int
	seconds  float64
	p50, p99 time.Duration
	used     usage
	atRest   counters // zero unless the programs rested
}

// newID returns ids in the order of time, as real ones are.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// begin waits for a free slot. It returns false when ctx ended first.
func (l *load) begin(ctx context.Context, id string) bool {
	if l.slots.Acquire(ctx, 1) != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began[id] = time.Now()
	return true
}

// end ends a charge.
func (l *load) end(id string) {
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
func (l *load) time(timing bool) (ended int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timing = timing
	return l.ended
}

const endPatience = 2 * time.Minute

// await waits until nothing is in flight.
func (l *load) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	if err := l.slots.Acquire(ctx, l.inFlight); err != nil {
		return errors.Join(fmt.Errorf("wait for all to end: %w", err), l.check())
	}
	l.slots.Release(l.inFlight)
	return nil
}

// check returns an error unless everything ended once.
func (l *load) check() error {
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
func (l *load) drive(ctx context.Context, warm, measured time.Duration, use func() usage, send func(id string) error) (w window, err error) {
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
				if err := send(id); err != nil { // not interrupted: what was begun ends
					return fmt.Errorf("send %s: %w", id, err)
				}
			}
		})
	}
	err = harness.Wait(sending, warm)
	before, began, from := use(), time.Now(), l.time(true)
	err = errors.Join(err, harness.Wait(sending, measured))
	w = window{done: l.time(false) - from, seconds: time.Since(began).Seconds(), used: use().minus(before)}
	stop()
	if err := errors.Join(all.Wait(), err); err != nil {
		return w, err
	}
	err = l.await(ctx)
	if slices.Sort(l.latencies); len(l.latencies) > 0 {
		w.p50, w.p99 = l.latencies[len(l.latencies)/2], l.latencies[len(l.latencies)*99/100]
	}
	return w, err
}
