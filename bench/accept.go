package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sync/errgroup"
)

// acceptCharges measures the api alone: no worker processes what it accepts.
func acceptCharges(ctx context.Context, b *bench, set setting) (Sample, error) {
	set.InFlight = httpConnections
	return job{start: startAPIs, drive: driveAccepting, check: func(ctx context.Context, d *deployment) error {
		return d.checkAccepted(ctx, d.loop.ended-d.earlier, true)
	}}.measure(ctx, b, set)
}

// driveAccepting drives charges that end when they are accepted.
func driveAccepting(ctx context.Context, d *deployment, of *running) (window, error) {
	l := d.load(of)
	send := l.send
	l.send = func(ctx context.Context, id string) error {
		defer d.loop.end(id)
		return send(ctx, id)
	}
	return d.loop.drive(ctx, l)
}

// replayCharges accepts charges, and then measures the responses to the same requests.
func replayCharges(ctx context.Context, b *bench, set setting) (Sample, error) {
	set.InFlight = httpConnections
	charges := b.sizes.replayed
	key := func(n int) string { return fmt.Sprintf("replayed-%06d", n) }
	return job{
		prepare: func(ctx context.Context, d *deployment) error {
			return d.once(ctx, startAPIs, func(of *running) error {
				c := newClient(of.urls[0])
				return onAllConnections(charges, func(n int) error {
					_, err := c.charge(d.accounts[n%len(d.accounts)], key(n), n)
					return err
				})
			})
		},
		start: startAPIs,
		drive: func(ctx context.Context, d *deployment, of *running) (window, error) {
			c, l := newClient(of.urls[0]), d.load(of)
			l.send = func(_ context.Context, id string) error {
				defer d.loop.end(id)
				n := rand.N(charges) //nolint:gosec // no secret
				replayed, err := c.charge(d.accounts[n%len(d.accounts)], key(n), n)
				if err == nil && !replayed {
					err = fmt.Errorf("charge %d was accepted twice", n)
				}
				return err
			}
			return d.loop.drive(ctx, l)
		},
		check: func(ctx context.Context, d *deployment) error { return d.checkAccepted(ctx, 0, true) },
	}.measure(ctx, b, set)
}

// once runs programs while do does something that is not measured.
func (d *deployment) once(ctx context.Context, start func(context.Context, *deployment) (*running, error), do func(*running) error) (err error) {
	of, err := start(ctx, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, of.stop(ctx)) }()
	return do(of)
}

// onAllConnections does a number of things over all connections at once.
func onAllConnections(count int, do func(n int) error) error {
	g := errgroup.Group{}
	g.SetLimit(httpConnections)
	for n := range count {
		g.Go(func() error { return do(n) })
	}
	return g.Wait()
}
