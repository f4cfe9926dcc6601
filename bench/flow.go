package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// flow is a closed loop: a bounded number of charges is under way at a time, and
// the next begins when one ends. So a slow carrier is not buried under a backlog,
// and every carrier has the same number in flight.
type flow struct {
	slots    chan struct{}
	patience time.Duration // until everything that was begun must have ended

	mu       sync.Mutex
	began    map[string]time.Time // of what is under way
	ended    int
	unknown  int // ends of what was not under way: something was done twice
	timing   bool
	measured []time.Duration
	idle     chan struct{} // closed while nothing is under way
}

func newFlow(inFlight int) *flow {
	idle := make(chan struct{})
	close(idle)
	return &flow{slots: make(chan struct{}, inFlight), patience: drainPatience, began: map[string]time.Time{}, idle: idle}
}

// begin waits until there is room, and says false when ctx ended first.
func (f *flow) begin(ctx context.Context, id string) bool {
	select {
	case f.slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.began) == 0 {
		f.idle = make(chan struct{})
	}
	f.began[id] = time.Now()
	return true
}

// end says that a charge has come to its end.
func (f *flow) end(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.began[id]
	if !ok {
		f.unknown++
		return
	}
	delete(f.began, id)
	f.ended++
	if f.timing {
		f.measured = append(f.measured, time.Since(at))
	}
	if len(f.began) == 0 {
		close(f.idle)
	}
	<-f.slots
}

// time says whether ends are timed from now on, and how many there were.
func (f *flow) time(timing bool) (ended int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.timing = timing
	return f.ended
}

// timed are the latencies since it was last asked for them.
func (f *flow) timed() []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.measured
	f.measured = nil
	return all
}

// await waits until nothing is under way.
func (f *flow) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.patience)
	defer cancel()
	f.mu.Lock()
	idle := f.idle
	f.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		return fmt.Errorf("%d of %d did not come to their end: %w", len(f.began), len(f.began)+f.ended, ctx.Err())
	}
}

const drainPatience = 2 * time.Minute

// check says whether everything ended once.
func (f *flow) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.began) > 0 || f.unknown > 0 || f.ended == 0 {
		return fmt.Errorf("%d ended, %d did not, %d ended twice", f.ended, len(f.began), f.unknown)
	}
	return nil
}

// load is how a flow is driven.
type load struct {
	senders  int
	warm     time.Duration
	measured time.Duration
	next     func() (id string)
	send     func(ctx context.Context, id string) error // ends the flow's charge itself, or lets somebody else do it
	use      func() usage                               // what carrying has cost so far
}

// drive sends for a while, and measures the part of it after the warm-up. It
// returns when everything that was sent has come to its end.
func (f *flow) drive(ctx context.Context, l load) (w window, err error) {
	err = f.sending(ctx, l, func(ctx context.Context) error {
		if err := pause(ctx, l.warm); err != nil {
			return err
		}
		w, err = f.watch(ctx, l)
		return err
	})
	return w, err
}

// sending sends until watching has ended, and returns when everything that was
// sent has come to its end. The context of watching ends when a sender fails.
func (f *flow) sending(ctx context.Context, l load, watching func(context.Context) error) error {
	until, stop := context.WithCancel(ctx)
	defer stop()
	senders, failed := errgroup.WithContext(until)
	for range l.senders {
		senders.Go(func() error {
			for {
				id := l.next()
				if !f.begin(failed, id) {
					return nil
				}
				if err := l.send(ctx, id); err != nil { // not interrupted: what was begun comes to its end
					return fmt.Errorf("send %s: %w", id, err)
				}
			}
		})
	}
	err := watching(failed)
	stop()
	if err := errors.Join(senders.Wait(), err); err != nil {
		return err
	}
	return f.await(ctx)
}

// watch measures while others send.
func (f *flow) watch(ctx context.Context, l load) (window, error) {
	took, w, err := f.measure(ctx, l)
	w.latencies(took)
	return w, err
}

// measure is watch that leaves the latencies as they are.
func (f *flow) measure(ctx context.Context, l load) (took []time.Duration, w window, err error) {
	before, began, from := l.use(), time.Now(), f.time(true)
	if err := pause(ctx, l.measured); err != nil {
		return nil, w, err
	}
	w = window{Done: f.time(false) - from, Seconds: time.Since(began).Seconds()}
	w.Used = l.use().minus(before)
	return f.timed(), w, nil
}

// window is what was seen while it was measured.
type window struct {
	Done    int           `json:"done"`
	Seconds float64       `json:"seconds"`
	P50     time.Duration `json:"p50"`
	P99     time.Duration `json:"p99"`
	Used    usage         `json:"used"`
	Total   int           `json:"total"` // done, warm-up and drain included
}

func (w *window) latencies(all []time.Duration) {
	if len(all) == 0 {
		return
	}
	slices.Sort(all)
	w.P50, w.P99 = all[len(all)/2], all[len(all)*99/100]
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
