package main

import (
	"context"
	"time"
)

// restWorker measures what a worker costs that has nothing to do. What is done is a second
// of it: so the table shows transactions, and milliseconds of processor time, of each second.
func restWorker(ctx context.Context, b *bench, set setting) (s Sample, err error) {
	d, err := b.deploy(ctx, set)
	if err != nil {
		return s, err
	}
	defer d.external.close()
	// Starting and stopping count in both.
	_, started, err := counted(ctx, d.database, func() (window, error) { return d.resting(ctx, 0) })
	if err != nil {
		return s, err
	}
	w, all, err := counted(ctx, d.database, func() (window, error) { return d.resting(ctx, b.sizes.rest) })
	return newSample(w, all.minus(started)), err
}

// settled is how long a worker runs before it is at rest.
const settled = 3 * time.Second

// resting watches the workers.
func (d *deployment) resting(ctx context.Context, t time.Duration) (w window, err error) {
	err = d.while(ctx, []string{"worker"}, func(of *running) error {
		if err := pause(ctx, min(settled, 10*d.sizes.rest)); err != nil {
			return err
		}
		before, began := of.use(), time.Now()
		err := pause(ctx, t)
		seconds := max(1, int(t.Seconds()))
		w = window{Done: seconds, Total: seconds, Seconds: time.Since(began).Seconds(), Used: of.use().minus(before)}
		return err
	})
	return w, err
}
