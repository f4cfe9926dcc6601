package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// strikeAll breaks things while charges flow: the provider's answers first, then a worker about
// every second and, between them, an api and the database once. The provider's faults last for the
// whole demo. It ends early, without an error, when the time is up.
func (r *run) strikeAll(ctx context.Context) error {
	const rest = 1200 * time.Millisecond
	random := rand.New(rand.NewPCG(r.Seed, 1)) //nolint:gosec // a plan must be repeatable, not secret
	began := r.Now()
	err := r.silence(ctx)
	if err == nil {
		err = r.setFaults(ctx, harness.Faults{Seed: r.Seed, DropBefore: 0.05, DropAfter: 0.05, Error500: 0.03, Slow: harness.Slow{P: 0.1, Milliseconds: 300}})
	}
	n := int(r.plan.length / rest)
	for i := 0; i < n && err == nil; i++ {
		at := rest*time.Duration(i) + rest/4 + time.Duration(random.Int64N(int64(rest/2)))
		if err = harness.Wait(ctx, at-r.Now().Sub(began)); err == nil {
			err = r.strike(ctx, i, n, random.IntN(programsOfKind))
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return err
}

// strike kills a worker and, a third and two thirds of the way, an api or the database.
func (r *run) strike(ctx context.Context, i, n, which int) error {
	flowing := r.awaitCharges(ctx)
	if err := r.kill(ctx, "worker", which); err != nil {
		return fmt.Errorf("kill a worker: %w", err)
	}
	r.note(func(c *chaos) {
		c.workers++
		if flowing {
			c.inFlight++
		}
	})
	switch i {
	case n / 3:
		if err := r.kill(ctx, "api", which); err != nil {
			return fmt.Errorf("kill an api: %w", err)
		}
		r.note(func(c *chaos) { c.apis++ })
	case 2 * n / 3:
		began := r.Now()
		err := r.restart(ctx)
		if err != nil && !errors.Is(err, errNotRun) {
			return fmt.Errorf("restart the database: %w", err)
		}
		r.note(func(c *chaos) {
			if c.notRun = err != nil; !c.notRun {
				c.restarted = max(time.Millisecond, r.Now().Sub(began))
			}
		})
	}
	return nil
}

// note changes what was broken so far.
func (r *run) note(change func(*chaos)) {
	r.breaking.Lock()
	defer r.breaking.Unlock()
	change(&r.chaos)
}

// silence is how the demo begins: the provider and the shop carry out all requests
// and answer none. It ends after a few requests.
func (r *run) silence(ctx context.Context) error {
	const requests = 4
	if err := r.setFaults(ctx, harness.Faults{DropAfter: 1}); err != nil {
		return err
	}
	for range 100 {
		if err := harness.Wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
		if now, err := r.sandbox.Books(ctx); err != nil || now.Requests >= r.before.Requests+requests {
			return err
		}
	}
	return nil
}

// setFaults replaces the faults of the sandbox, and those that the lab restores.
func (r *run) setFaults(ctx context.Context, f harness.Faults) error {
	r.breaking.Lock()
	r.faults = f
	r.breaking.Unlock()
	return r.sandbox.SetFaults(ctx, f)
}

// awaitCharges waits half a second for a charge to be in flight, so that a kill does
// not meet an idle worker, and reports whether one is.
func (r *run) awaitCharges(ctx context.Context) bool {
	for range 50 {
		if r.inFlight() > 0 || harness.Wait(ctx, 10*time.Millisecond) != nil {
			break
		}
	}
	return r.inFlight() > 0
}

// broken is what was broken so far.
func (r *run) broken() string {
	r.breaking.Lock()
	defer r.breaking.Unlock()
	c := r.chaos
	text := fmt.Sprintf("%s %s, %s %s", plural(c.workers, "worker"), c.killed, plural(c.apis, "api"), c.killed)
	if c.restarted > 0 {
		text += ", database restarted in " + c.restarted.Round(time.Millisecond).String()
	}
	if c.notRun {
		text += ", restart of the database not run"
	}
	return text
}
