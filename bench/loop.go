package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// loop is a closed loop: a fixed number of charges is in flight, and the next begins
// when one ends. So a slow subject does not collect a backlog, and all subjects have
// the same number in flight.
type loop struct {
	slots    chan struct{}
	patience time.Duration // until everything that was begun must have ended

	mu        sync.Mutex
	began     map[string]time.Time // of what is in flight
	ended     int
	unknown   int // ends of what was not in flight: something was done twice
	timing    bool
	latencies []time.Duration
	idle      chan struct{} // closed while nothing is in flight
}

const drainPatience = 2 * time.Minute

func newLoop(inFlight int) *loop {
	idle := make(chan struct{})
	close(idle)
	return &loop{slots: make(chan struct{}, inFlight), patience: drainPatience, began: map[string]time.Time{}, idle: idle}
}

// begin waits for a free slot. It returns false when ctx ended first.
func (l *loop) begin(ctx context.Context, id string) bool {
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.began) == 0 {
		l.idle = make(chan struct{})
	}
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
	if len(l.began) == 0 {
		close(l.idle)
	}
	<-l.slots
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
	l.mu.Lock()
	idle := l.idle
	l.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		return fmt.Errorf("%d of %d did not end: %w", len(l.began), len(l.began)+l.ended, ctx.Err())
	}
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

// load is how a loop is driven.
type load struct {
	senders  int
	warm     time.Duration
	measured time.Duration
	next     func() (id string)
	send     func(ctx context.Context, id string) error // what it sends ends by a call of end
	use      func() usage                               // of the programs so far
}

// drive sends for a while, and measures the part of it after the warm-up. It returns
// when everything that was sent has ended.
func (l *loop) drive(ctx context.Context, of load) (w window, err error) {
	until, stop := context.WithCancel(ctx)
	defer stop()
	senders, failed := errgroup.WithContext(until)
	for range of.senders {
		senders.Go(func() error {
			for {
				id := of.next()
				if !l.begin(failed, id) {
					return nil
				}
				if err := of.send(ctx, id); err != nil { // not interrupted: what was begun ends
					return fmt.Errorf("send %s: %w", id, err)
				}
			}
		})
	}
	err = pause(failed, of.warm)
	before, began, from := of.use(), time.Now(), l.time(true)
	err = errors.Join(err, pause(failed, of.measured))
	w = window{Done: l.time(false) - from, Seconds: time.Since(began).Seconds(), Used: of.use().minus(before)}
	stop()
	if err := errors.Join(senders.Wait(), err); err != nil {
		return w, err
	}
	w.latencies(l.latencies)
	return w, l.await(ctx)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
