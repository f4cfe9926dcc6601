package main

import (
	"context"
	"fmt"
	"time"
)

// alongBacklog measures how a worker carries what was accepted before it was
// started. What accepting has cost is added to what carrying does: so does a
// charge where there is no backlog, and both go on at once.
func alongBacklog(ctx context.Context, c *curving) error {
	for _, waiting := range c.extent.Backlogs {
		room := waiting
		if waiting == 0 {
			room = inFlight
		}
		err := c.at(ctx, fmt.Sprintf("%d waiting", waiting), room, func(w *world) ([]Point, error) {
			if waiting == 0 {
				p, err := w.carrying(ctx, true)
				return []Point{p}, err
			}
			p, err := w.drained(ctx, waiting, waiting <= c.extent.Audited)
			return []Point{p}, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// slowestDrain is a rate below which a drain is given up, charges a second.
const slowestDrain = 50

// drained accepts charges, and then measures how a worker carries all of them.
func (w *world) drained(ctx context.Context, waiting int, audited bool) (p Point, err error) {
	w.flow.patience = drainPatience + time.Duration(waiting/slowestDrain)*time.Second
	p.X, p.By = float64(waiting), "payonce"
	p.Sample, err = w.judged(ctx, audited, func() (window, error) {
		accepted, err := w.acceptAll(ctx, waiting)
		if err != nil {
			return window{}, err
		}
		seen, err := w.drain(ctx, &p.Worker)
		for _, part := range []struct{ of, by *time.Duration }{
			{&seen.Used.Programs, &accepted.Programs}, {&seen.Used.Database, &accepted.Database},
		} {
			*part.of += *part.by * time.Duration(seen.Done) / time.Duration(waiting)
		}
		return seen, err
	})
	return p, err
}
