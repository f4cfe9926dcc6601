package main

import (
	"context"
	"errors"
	"fmt"
)

// alongTime looks at the programs' memory, slice by slice, while charges keep
// coming. There are more of them in the end than an audit could read in as much
// time.
func alongTime(ctx context.Context, c *curving) error {
	name := fmt.Sprintf("%d times %s", c.extent.Slices, c.extent.Slice)
	return c.at(ctx, name, inFlight, func(w *world) (points []Point, err error) {
		_, err = w.judged(ctx, false, func() (window, error) {
			return w.pairing(ctx, func(p pair) (window, error) {
				points, err = w.slices(ctx, c.extent, p)
				return window{}, err
			})
		})
		return points, err
	})
}

func (w *world) slices(ctx context.Context, e extent, p pair) (points []Point, err error) {
	l := w.sending(p.urls, p.use)
	l.measured = e.Slice
	api, worker := residents(p.api.PID()), residents(p.worker.PID())
	carried := 0
	err = w.flow.sending(ctx, l, func(ctx context.Context) error {
		for range e.Slices {
			seen, err := w.flow.watch(ctx, l)
			if err != nil {
				return err
			}
			carried += seen.Done
			points = append(points, Point{
				X: float64(carried), By: "payonce", Sample: newSample(seen, counters{}), API: api(), Worker: worker(),
			})
		}
		return nil
	})
	if err == nil && len(points) == 0 {
		err = errors.New("no slices")
	}
	return points, err
}
