package main

import (
	"context"
	"fmt"
	"time"
)

// alongTables measures charges end to end, and then accepting alone, beside those
// that are in the tables.
func alongTables(ctx context.Context, c *curving) error {
	for _, charges := range c.extent.Tables {
		err := c.at(ctx, fmt.Sprintf("%d charges", charges), inFlight, func(w *world) ([]Point, error) {
			use, began := users(w.server.postmaster), time.Now()
			before := use()
			if err := w.fill(ctx, charges); err != nil {
				return nil, err
			}
			fmt.Fprintf(c.say, ", filled in %.0f s with %.0f s of a processor", time.Since(began).Seconds(), use().minus(before).Database.Seconds())
			whole, err := w.carrying(ctx, charges <= c.extent.Audited)
			if err != nil {
				return nil, err
			}
			accepted, err := w.acceptingMore(ctx)
			if err != nil {
				return nil, err
			}
			whole.X, whole.By = float64(charges), "charges"
			accepted.X, accepted.By = float64(charges), "accept"
			return []Point{whole, accepted}, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// carrying measures the programs with as many charges under way as the flow has
// room for.
func (w *world) carrying(ctx context.Context, audited bool) (p Point, err error) {
	p.By = "payonce"
	p.Sample, err = w.judged(ctx, audited, func() (window, error) {
		return w.pairing(ctx, func(programs pair) (window, error) {
			api, worker := residents(programs.api.PID()), residents(programs.worker.PID())
			seen, err := w.flow.drive(ctx, w.sending(programs.urls, programs.use))
			p.API, p.Worker = api(), worker()
			return seen, err
		})
	})
	return p, err
}

// carryingByRiver measures the same charges, carried by River.
func (w *world) carryingByRiver(ctx context.Context, workers int) (p Point, err error) {
	p.By = "river"
	p.Sample, err = w.judged(ctx, false, func() (window, error) {
		return w.shopping(ctx, workers, func(url string, pid int) (window, error) {
			program := residents(pid)
			seen, err := w.flow.drive(ctx, w.sending([]string{url}, users(w.server.postmaster, pid)))
			p.Worker = program()
			return seen, err
		})
	})
	return p, err
}

// acceptingMore measures the api alone, in a world where everything was carried.
func (w *world) acceptingMore(ctx context.Context) (p Point, err error) {
	w.flow = newFlow(httpConnections)
	before, err := w.holdings(ctx)
	if err != nil {
		return p, err
	}
	p.Sample, err = counting(ctx, w.database, func() (window, error) { return w.accepting(ctx, &p.API) })
	if err != nil {
		return p, err
	}
	return p, w.checkAcceptedSince(ctx, before, w.flow.ended)
}
