package main

import (
	"context"
	"fmt"
	"time"
)

// riverWorkers are River's, where the number in flight does not ask for more. The
// table of the other command shows which number suits it.
const riverWorkers = 64

// alongConcurrency measures charges with more and more of them under way.
func alongConcurrency(ctx context.Context, c *curving) error {
	for _, flying := range c.extent.InFlight {
		err := c.beside(ctx, fmt.Sprintf("%d in flight", flying), flying, 0, func(p *Point) { p.X = float64(flying) }, true)
		if err != nil {
			return err
		}
	}
	return nil
}

// callsOfCharge are the calls of the provider that a charge needs, one after the
// other.
const callsOfCharge = 2

// alongLatency measures charges at a provider that takes its time. The worker has
// a place for each charge that is under way, and so has River, which is shown for
// most of them only.
func alongLatency(ctx context.Context, c *curving) error {
	for i, flying := range c.extent.SlowInFlight {
		for _, latency := range c.extent.Latencies {
			name := fmt.Sprintf("%s at %d in flight", latency, flying)
			err := c.beside(ctx, name, flying, latency, func(p *Point) {
				p.X = float64(latency.Milliseconds())
				p.By = fmt.Sprintf("%s, %d in flight", p.By, flying)
				if latency > 0 {
					p.Ideal = float64(flying) / (callsOfCharge * latency.Seconds())
				}
			}, i == len(c.extent.SlowInFlight)-1)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// beside measures a number of charges in flight, by payonce and by River. A
// provider that is slow wants a place for each of them.
func (c *curving) beside(ctx context.Context, name string, flying int, slow time.Duration, finish func(*Point), river bool) error {
	places, workers := 0, riverWorkers
	if slow > 0 {
		places, workers = flying, flying
	}
	err := c.at(ctx, name+", payonce", flying, func(w *world) ([]Point, error) {
		w.outside.slow, w.setting.Slots = slow, places
		p, err := w.carrying(ctx, true)
		finish(&p)
		return []Point{p}, err
	})
	if err != nil || !river {
		return err
	}
	return c.at(ctx, name+", river", flying, func(w *world) ([]Point, error) {
		w.outside.slow = slow
		p, err := w.carryingByRiver(ctx, workers)
		finish(&p)
		return []Point{p}, err
	})
}
