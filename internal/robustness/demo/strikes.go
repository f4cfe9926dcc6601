package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/payonce/payonce/internal/human"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// strike is something that breaks at a time, counted from the start. The provider's
// faults are no strike: they last for the whole demo.
type strike struct {
	at    time.Duration
	kind  string // worker, api or database
	which int    // of the programs
}

// newStrikes spreads the strikes over the length: a kill of a worker about every
// second and, between them, one of an api and a restart of the database.
func newStrikes(seed uint64, length time.Duration) []strike {
	const rest = 1200 * time.Millisecond
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a plan must be repeatable, not secret
	var strikes []strike
	n := int(length / rest)
	for i := range n {
		at := rest*time.Duration(i) + rest/4 + time.Duration(r.Int64N(int64(rest/2)))
		strikes = append(strikes, strike{at, "worker", r.IntN(programsOfKind)})
		switch i {
		case n / 3:
			strikes = append(strikes, strike{at, "api", r.IntN(programsOfKind)})
		case 2 * n / 3:
			strikes = append(strikes, strike{at: at, kind: "database"})
		}
	}
	return strikes
}

// strikeAll breaks things while charges flow: the provider's answers first, then
// the strikes in turn. It ends early, without an error, when the time is up.
func (r *run) strikeAll(ctx context.Context) error {
	began := r.Now()
	err := r.silence(ctx)
	if err == nil {
		err = r.setFaults(ctx, harness.Faults{Seed: r.Seed, DropBefore: 0.05, DropAfter: 0.05, Error500: 0.03, Slow: harness.Slow{P: 0.1, Milliseconds: 300}})
	}
	for _, next := range newStrikes(r.Seed, r.plan.length) {
		if err == nil {
			err = harness.Wait(ctx, next.at-r.Now().Sub(began))
		}
		if err == nil {
			err = r.carryOut(ctx, next)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return err
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

func (r *run) carryOut(ctx context.Context, next strike) error {
	flowing := next.kind == "worker" && r.awaitCharges(ctx)
	began := r.Now()
	var err error
	if next.kind == "database" {
		err = r.restart(ctx)
	} else {
		err = r.kill(ctx, next.kind, next.which)
	}
	if err != nil && !errors.Is(err, errNotRun) {
		return fmt.Errorf("strike %s: %w", next.kind, err)
	}
	r.breaking.Lock()
	defer r.breaking.Unlock()
	switch {
	case next.kind == "api":
		r.chaos.apis++
	case next.kind == "worker":
		r.chaos.workers++
		if flowing {
			r.chaos.inFlight++
		}
	case err != nil:
		r.chaos.notRun = true
	default:
		r.chaos.restarted = max(time.Millisecond, r.Now().Sub(began))
	}
	return nil
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
	text := fmt.Sprintf("%s %s, %s %s", human.Plural(c.workers, "worker"), c.killed, human.Plural(c.apis, "api"), c.killed)
	if c.restarted > 0 {
		text += ", database restarted in " + c.restarted.Round(time.Millisecond).String()
	}
	if c.notRun {
		text += ", restart of the database not run"
	}
	return text
}
