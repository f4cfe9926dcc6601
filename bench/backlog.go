package main

import (
	"context"
	"errors"
	"time"
)

// backlog measures how fast a worker carries charges that were accepted before it
// was started.
func backlog(ctx context.Context, s *stage, set setting) (Sample, error) {
	set.InFlight = s.sizes.backlog
	w, err := s.open(ctx, set)
	if err != nil {
		return Sample{}, err
	}
	defer w.close()
	return w.judged(ctx, true, func() (window, error) {
		if _, err := w.acceptAll(ctx, s.sizes.backlog); err != nil {
			return window{}, err
		}
		return w.drain(ctx, &Resident{})
	})
}

// acceptAll accepts charges, and says what that has cost.
func (w *world) acceptAll(ctx context.Context, charges int) (used usage, err error) {
	api, err := w.api(ctx)
	if err != nil {
		return used, err
	}
	defer func() { err = errors.Join(err, finish(ctx, api)) }()
	use := users(w.server.postmaster, api.PID())
	before, l := use(), w.sending([]string{api.URL()}, use)
	err = together(charges, func(int) error {
		id := l.next()
		w.flow.begin(ctx, id) // there is room for all
		return l.send(ctx, id)
	})
	return use().minus(before), err
}

// drain measures a worker until nothing is under way, and looks at its memory.
func (w *world) drain(ctx context.Context, memory *Resident) (seen window, err error) {
	worker, err := w.worker(ctx)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, finish(ctx, worker)) }()
	use, look := users(w.server.postmaster, worker.PID()), residents(worker.PID())
	before, began, from := use(), time.Now(), w.flow.time(false)
	if err := w.flow.await(ctx); err != nil {
		return seen, err
	}
	*memory = look()
	return window{Done: w.flow.time(false) - from, Seconds: time.Since(began).Seconds(), Used: use().minus(before)}, nil
}
