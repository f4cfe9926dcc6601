package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// strike is what breaks at a time of the plan: a worker, an api or the database.
type strike struct {
	at    time.Duration
	what  string
	which int // of the programs of a kind
}

const (
	worker   = "worker"
	api      = "api"
	database = "database"
)

// newStrikes strikes a worker about every second and, a third and two thirds of the way, an api and
// the database.
func newStrikes(r *rand.Rand, length time.Duration) (strikes []strike) {
	const rest = 1200 * time.Millisecond
	n := int(length / rest)
	for i := range n {
		at, which := rest*time.Duration(i)+rest/4+time.Duration(r.Int64N(int64(rest/2))), r.IntN(programsOfKind)
		strikes = append(strikes, strike{at, worker, which})
		switch i {
		case n / 3:
			strikes = append(strikes, strike{at, api, which})
		case 2 * n / 3:
			strikes = append(strikes, strike{at, database, 0})
		}
	}
	return strikes
}

// chaos is what was broken while charges flowed.
type chaos struct {
	killed                  string        // what happens to a program: killed, or cut off the database
	workers, inFlight, apis int           // killed; inFlight are workers while charges were in flight
	restarted               time.Duration // how long the restart of the database took; 0 is never
	notRun                  bool          // the database could not be restarted here
	losses                  []string      // programs that ended and were not killed
	programs                int           // all of the demo's own
}

// strikeAll breaks things while charges flow: the provider and the shop carry out all requests and
// answer none, then they have faults for the whole demo, and the plan's strikes happen. It ends early,
// without an error, when the time is up.
func (r *run) strikeAll(ctx context.Context) error {
	const silence = 2 * time.Second
	began := r.Now()
	err := r.setFaults(ctx, harness.Faults{DropAfter: 1})
	if err == nil {
		err = harness.Wait(ctx, silence)
	}
	if err == nil {
		slow := harness.Slow{P: 0.1, Milliseconds: 300}
		err = r.setFaults(ctx, harness.Faults{Seed: r.Seed, DropBefore: 0.05, DropAfter: 0.05, Error500: 0.03, Slow: slow})
	}
	for _, s := range r.plan.strikes {
		if err == nil {
			err = harness.Wait(ctx, s.at-r.Now().Sub(began))
		}
		if err == nil {
			err = r.strike(ctx, s)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return err
}

// setFaults replaces the faults of the sandbox, and those that the lab restores.
func (r *run) setFaults(ctx context.Context, f harness.Faults) error {
	r.breaking.Lock()
	r.faults = f
	r.breaking.Unlock()
	return r.sandbox.SetFaults(ctx, f)
}

func (r *run) strike(ctx context.Context, s strike) (err error) {
	const patience = 500 * time.Millisecond // for a charge, so that a kill meets no idle worker
	began := r.Now()
	for r.inFlight() == 0 && r.Now().Sub(began) < patience {
		_ = harness.Wait(ctx, 10*time.Millisecond)
	}
	flowing, began := r.inFlight() > 0, r.Now()
	if s.what == database {
		err = r.restart(ctx)
	} else {
		err = r.kill(ctx, s.what, s.which)
	}
	notRun := errors.Is(err, errNotRun)
	if err != nil && !notRun {
		return fmt.Errorf("break the %s: %w", s.what, err)
	}
	r.breaking.Lock()
	defer r.breaking.Unlock()
	switch c := &r.chaos; {
	case notRun:
		c.notRun = true
	case s.what == database:
		c.restarted = max(time.Millisecond, r.Now().Sub(began))
	case s.what == api:
		c.apis++
	case flowing:
		c.inFlight++
		fallthrough
	default:
		c.workers++
	}
	return nil
}

// broken is what was broken so far.
func (r *run) broken() string {
	r.breaking.Lock()
	defer r.breaking.Unlock()
	c := r.chaos
	text := fmt.Sprintf("%s %s, %s %s", plural(c.workers, worker), c.killed, plural(c.apis, api), c.killed)
	if c.restarted > 0 {
		text += ", database restarted in " + c.restarted.Round(time.Millisecond).String()
	}
	if c.notRun {
		text += ", restart of the database not run"
	}
	return text
}
