package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/payonce/payonce/internal/human"
	"github.com/payonce/payonce/internal/robustness/traffic"
)

// strike is something that breaks at a time, counted from the start. The provider's
// faults are no strike: they last for the whole demo.
type strike struct {
	at    time.Duration
	kind  strikeKind
	which int // of the programs
}

// strikeKind is the program that is struck.
type strikeKind string

const (
	killWorker      strikeKind = "worker"
	killAPI         strikeKind = "api"
	restartDatabase strikeKind = "database"
)

// newStrikes spreads the strikes over the length: a kill of a worker about every
// second and, between them, one of an api and a restart of the database.
func newStrikes(seed uint64, length time.Duration) []strike {
	const rest = 1200 * time.Millisecond
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a plan must be repeatable, not secret
	var strikes []strike
	n := int(length / rest)
	for i := range n {
		at := rest*time.Duration(i) + rest/4 + time.Duration(r.Int64N(int64(rest/2)))
		strikes = append(strikes, strike{at, killWorker, r.IntN(2)})
		switch i {
		case n / 3:
			strikes = append(strikes, strike{at, killAPI, r.IntN(2)})
		case 2 * n / 3:
			strikes = append(strikes, strike{at: at, kind: restartDatabase})
		}
	}
	return strikes
}

// broken is what was broken so far.
func (r *run) broken() string {
	r.breaking.Lock()
	defer r.breaking.Unlock()
	c := r.Chaos
	text := fmt.Sprintf("%s %s, %s %s", human.Plural(c.WorkerKills, "worker"), c.Killed, human.Plural(c.APIKills, "api"), c.Killed)
	if c.Restarted > 0 {
		text += ", database restarted in " + c.Restarted.Round(time.Millisecond).String()
	}
	if c.NotRun {
		text += ", restart of the database not run"
	}
	return text
}

// someFaults are those that last while charges flow.
func someFaults(seed uint64) traffic.Faults {
	return traffic.Faults{Seed: seed, DropBefore: 0.05, DropAfter: 0.05, Error500: 0.03, Slow: traffic.Slow{P: 0.1, Milliseconds: 300}}
}

// strikeAll breaks things while charges flow: the provider's answers first, then
// the strikes in turn. It ends early, without an error, when the time is up.
func (r *run) strikeAll(ctx context.Context) error {
	began := r.Now()
	err := r.outage(ctx)
	if err == nil {
		err = r.setFaults(ctx, someFaults(r.Seed))
	}
	for _, next := range newStrikes(r.Seed, r.Plan.Length) {
		if err == nil {
			err = traffic.Wait(ctx, next.at-r.Now().Sub(began))
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

func (r *run) carryOut(ctx context.Context, next strike) error {
	inFlight := next.kind == killWorker && r.awaitCharges(ctx)
	began := r.Now()
	var err error
	if next.kind == restartDatabase {
		err = r.stage.restartDatabase(ctx)
	} else {
		err = r.stage.kill(ctx, string(next.kind), next.which)
	}
	if err != nil && !errors.Is(err, errNotRun) {
		return fmt.Errorf("strike %s: %w", next.kind, err)
	}
	r.breaking.Lock()
	defer r.breaking.Unlock()
	switch {
	case next.kind == killAPI:
		r.Chaos.APIKills++
	case next.kind == killWorker:
		r.Chaos.WorkerKills++
		if inFlight {
			r.Chaos.KillsInFlight++
		}
	case err != nil:
		r.Chaos.NotRun = true
	default:
		r.Chaos.Restarted = max(time.Millisecond, r.Now().Sub(began))
	}
	return nil
}

// awaitCharges waits half a second for a charge to be in flight, so that a kill does
// not meet an idle worker, and reports whether one is.
func (r *run) awaitCharges(ctx context.Context) bool {
	for range 50 {
		if r.tally.InFlight() > 0 || traffic.Wait(ctx, 10*time.Millisecond) != nil {
			break
		}
	}
	return r.tally.InFlight() > 0
}

// outage is how the demo begins: the provider and the shop carry out all requests
// and answer none. It ends after a few requests.
func (r *run) outage(ctx context.Context) error {
	const requests = 4
	before, err := r.sandbox.Books(ctx)
	if err != nil {
		return err
	}
	if err := r.setFaults(ctx, traffic.Faults{DropAfter: 1}); err != nil {
		return err
	}
	for range 100 {
		if err := traffic.Wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
		if now, err := r.sandbox.Books(ctx); err != nil || now.Requests >= before.Requests+requests {
			return err
		}
	}
	return nil
}
