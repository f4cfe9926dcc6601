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

	"github.com/payonce/payonce/internal/robustness/harness"
)

// load is a closed loop: a fixed number of charges is in flight, and the next begins
// when one ends. So a slow program does not collect a backlog, and all programs have
// the same number in flight.
type load struct {
	mu        sync.Mutex
	flying    map[string]chan<- time.Time // what is in flight, and the channel of its sender
	ended     int
	unknown   int // ends of what was not in flight: something was done twice
	timing    bool
	latencies []time.Duration
}

// window is what was seen while it was measured.
type window struct {
	done     int
	seconds  float64
	p50, p99 time.Duration
	used     usage
}

// newID returns ids in the order of time, as real ones are.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

const (
	endPatience = 2 * time.Minute
	connections = 64 // of the client: an api refuses more requests at a time than it can serve
)

// one sends a charge and waits until it has ended.
func (l *load) one(ctx context.Context, send func(id string) error) error {
	id, ends, began := newID(), make(chan time.Time, 1), time.Now()
	l.mu.Lock()
	l.flying[id] = ends
	l.mu.Unlock()
	if err := send(id); err != nil {
		return fmt.Errorf("send %s: %w", id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, endPatience)
	defer cancel()
	select {
	case at := <-ends:
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.timing {
			l.latencies = append(l.latencies, at.Sub(began))
		}
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("wait for all to end: %w", ctx.Err()), l.check())
	}
}

// end ends a charge.
func (l *load) end(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ends, ok := l.flying[id]
	if !ok {
		l.unknown++
		return
	}
	delete(l.flying, id)
	l.ended++
	ends <- time.Now()
}

// time says whether latencies are kept from now on, and returns how many charges have
// ended.
func (l *load) time(timing bool) (ended int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timing = timing
	return l.ended
}

// check returns an error unless everything ended once.
func (l *load) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.flying) > 0 || l.unknown > 0 {
		return fmt.Errorf("%d ended, %d did not, %d ended twice", l.ended, len(l.flying), l.unknown)
	}
	return nil
}

// drive keeps n charges in flight for a while and measures the part of it after the warm-up; n is 0 while the
// programs rest. It returns when everything that was sent has ended, each by a call of end.
func (l *load) drive(
	ctx context.Context, n int, warm, measured time.Duration,
	use func(ctx context.Context, begins bool) (usage, error), send func(id string) error,
) (w window, err error) {
	until, stop := context.WithCancel(ctx)
	defer stop()
	all, sending := errgroup.WithContext(until)
	for range n {
		all.Go(func() (err error) {
			for err == nil && sending.Err() == nil {
				err = l.one(ctx, send) // not interrupted: what was begun ends
			}
			return err
		})
	}
	err = harness.Wait(sending, warm)
	before, unread := use(ctx, true)
	began, from := time.Now(), l.time(true)
	err = errors.Join(err, unread, harness.Wait(sending, measured))
	w = window{done: l.time(false) - from, seconds: time.Since(began).Seconds()}
	after, unread := use(ctx, false)
	w.used = after.minus(before)
	stop()
	if err := errors.Join(all.Wait(), err, unread); err != nil {
		return w, err
	}
	if slices.Sort(l.latencies); len(l.latencies) > 0 {
		w.p50, w.p99 = l.latencies[len(l.latencies)/2], l.latencies[len(l.latencies)*99/100]
	}
	return w, nil
}
