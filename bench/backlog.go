package main

import (
	"context"
	"errors"
	"time"
)

// backlog measures how fast a worker carries charges that were accepted before it
// was started.
func backlog(ctx context.Context, s *stage) (Sample, error) {
	w, err := s.open(ctx, s.sizes.backlog)
	if err != nil {
		return Sample{}, err
	}
	defer w.close()
	return w.judged(ctx, true, func() (window, error) {
		if err := w.acceptAll(ctx); err != nil {
			return window{}, err
		}
		return w.drain(ctx)
	})
}

func (w *world) acceptAll(ctx context.Context) (err error) {
	api, err := w.api(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, finish(ctx, api)) }()
	l := w.sending(api.URL(), nil)
	return together(w.sizes.backlog, func(int) error {
		id := l.next()
		w.flow.begin(ctx, id) // there is room for all
		return l.send(ctx, id)
	})
}

func (w *world) drain(ctx context.Context) (seen window, err error) {
	worker, err := w.worker(ctx)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, finish(ctx, worker)) }()
	use := users(w.server.postmaster, worker.PID())
	before, began, from := use(), time.Now(), w.flow.time(false)
	if err := w.flow.await(ctx); err != nil {
		return seen, err
	}
	return window{Done: w.flow.time(false) - from, Seconds: time.Since(began).Seconds(), Used: use().minus(before)}, nil
}
