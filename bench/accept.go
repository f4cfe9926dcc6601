package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sync/errgroup"
)

// The api alone is measured: while it accepts, and while it answers requests once more. No
// worker processes what it accepts.
var (
	acceptCharges = job{programs: []string{"api"}, drive: driveAccepting, check: checkAccepted}
	replayCharges = job{programs: []string{"api"}, prepare: acceptReplayed, drive: driveReplays, check: checkNothingAccepted}
)

// driveAccepting drives charges that end when they are accepted.
func driveAccepting(ctx context.Context, d *deployment, of *running) (window, error) {
	return d.drive(ctx, of, func(id string) error {
		defer d.loop.end(id)
		return d.send(of, id)
	})
}

// replayed sends the nth charge of those whose responses are asked for again.
func (d *deployment) replayed(of *running, n int) (bool, error) {
	return d.client.charge(of.urls[0], d.accounts[n%len(d.accounts)], fmt.Sprintf("replayed-%06d", n), n)
}

func acceptReplayed(ctx context.Context, d *deployment) error {
	return d.while(ctx, []string{"api"}, func(of *running) error {
		return onAllConnections(d.sizes.replayed, func(n int) error {
			_, err := d.replayed(of, n)
			return err
		})
	})
}

func driveReplays(ctx context.Context, d *deployment, of *running) (window, error) {
	return d.drive(ctx, of, func(id string) error {
		defer d.loop.end(id)
		n := rand.N(d.sizes.replayed) //nolint:gosec // no secret
		replayed, err := d.replayed(of, n)
		if err == nil && !replayed {
			err = fmt.Errorf("charge %d was accepted twice", n)
		}
		return err
	})
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

func checkAccepted(ctx context.Context, d *deployment) error {
	return d.accepted(ctx, d.loop.ended-d.earlier)
}

func checkNothingAccepted(ctx context.Context, d *deployment) error { return d.accepted(ctx, 0) }

// accepted compares what the tables hold more than before with what was accepted.
func (d *deployment) accepted(ctx context.Context, n int) error {
	now, err := d.holdings(ctx)
	if err != nil {
		return err
	}
	for i := range now {
		if now[i]-d.before[i] != n {
			return fmt.Errorf("%d accepted; charges, keys, events and messages were %d and are %d", n, d.before, now)
		}
	}
	return nil
}
