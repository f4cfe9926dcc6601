package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// load is a closed loop: a fixed number of charges is in flight, and the next begins
// when one ends. So a slow program does not collect a backlog, and all programs have
// the same number in flight.
type load struct {
	mu        sync.Mutex
	latencies []time.Duration // of all that has ended
}

// window is what was seen while it was measured.
type window struct {
	done     int
	seconds  float64
	p50, p99 time.Duration
	used     usage
	counted  counters // of which only those at rest are exact: a busy session reports late
}

// newID returns ids in the order of time, as real ones are.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

const (
	endPatience = 2 * time.Minute
	connections = 64 // of the client: an api refuses more requests at a time than it can serve
)

// one sends a charge, which has ended when send returns.
func (l *load) one(send func(id string) error) error {
	began := time.Now()
	if err := send(newID()); err != nil {
		return err
	}
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latencies = append(l.latencies, took)
	return nil
}

// ended is how many charges have ended.
func (l *load) ended() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.latencies)
}

// drive keeps charges in flight for a while and measures the part of it after the warm-up; there are none while
// the programs rest. It returns when everything that was sent has ended.
func (d *deployment) drive(ctx context.Context, send func(id string) error) (w window, err error) {
	until, stop := context.WithCancel(ctx)
	defer stop()
	all, sending := errgroup.WithContext(until)
	for range d.inFlight {
		all.Go(func() (err error) {
			for err == nil && sending.Err() == nil {
				err = d.one(send) // not interrupted: what was begun ends
			}
			return err
		})
	}
	err = harness.Wait(sending, d.warm)
	counted, unread := d.readCounters(ctx) // outside the window, since this needs processor time
	used, began, first := d.used(), time.Now(), d.ended()
	err = errors.Join(err, unread, harness.Wait(sending, d.measured))
	last := d.ended()
	w.seconds = time.Since(began).Seconds()
	now := d.used()
	w.used = usage{now.programs - used.programs, now.database - used.database}
	w.counted, unread = d.readCounters(ctx)
	w.counted = w.counted.minus(counted)
	stop()
	if err := errors.Join(all.Wait(), err, unread); err != nil {
		return w, err
	}
	if w.done = last - first; w.done > 0 {
		took := slices.Sorted(slices.Values(d.latencies[first:last]))
		w.p50, w.p99 = took[w.done/2], took[w.done*99/100]
	}
	return w, nil
}
