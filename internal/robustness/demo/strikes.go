package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// strike is an action of the crash lab at a time of the plan.
type strike struct {
	at     time.Duration
	action string
}

// The actions of the crash lab that the plan takes.
const (
	killWorker      = "kill-worker"
	killAPI         = "kill-api"
	restartDatabase = "restart-database"
)

// newStrikes strikes a worker about every second and, a third and two thirds of the way, an api and
// the database.
func newStrikes(r *rand.Rand, length time.Duration) (strikes []strike) {
	const rest = 1200 * time.Millisecond
	n := int(length / rest)
	for i := range n {
		at := rest*time.Duration(i) + rest/4 + time.Duration(r.Int64N(int64(rest/2)))
		strikes = append(strikes, strike{at, killWorker})
		if i == n/3 {
			strikes = append(strikes, strike{at, killAPI})
		}
		if i == 2*n/3 {
			strikes = append(strikes, strike{at, restartDatabase})
		}
	}
	return strikes
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
	actions := map[string]Action{}
	for _, a := range crashes() {
		actions[a.Name] = a
	}
	for _, s := range r.plan.strikes {
		if err == nil {
			err = harness.Wait(ctx, s.at-r.Now().Sub(began))
		}
		if err == nil {
			err = r.strike(ctx, actions[s.action])
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

// strike waits for a moment until a charge is in flight, so that a kill meets no idle worker, and
// takes the action.
func (r *run) strike(ctx context.Context, a Action) error {
	const patience = 500 * time.Millisecond
	for began := r.Now(); r.inFlight() == 0 && r.Now().Sub(began) < patience; {
		_ = harness.Wait(ctx, 10*time.Millisecond)
	}
	flowing, began := r.inFlight() > 0, r.Now()
	_, err := a.do(ctx, r)
	r.breaking.Lock()
	defer r.breaking.Unlock()
	switch c := &r.chaos; {
	case errors.Is(err, errNotRun):
		c.notRun = true
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", a.Name, err)
	case a.Name == restartDatabase:
		c.restarted = r.Now().Sub(began)
	case a.Name == killWorker && flowing:
		c.inFlight++
	}
	r.chaos.struck[a.Name]++
	return nil
}

// broken is what was broken so far.
func (r *run) broken() string {
	r.breaking.Lock()
	defer r.breaking.Unlock()
	struck := r.chaos.struck
	text := fmt.Sprintf("%s %s, %s %s", plural(struck[killWorker], "worker"), r.killed, plural(struck[killAPI], "api"), r.killed)
	if struck[restartDatabase] > 0 {
		text += ", database restarted in " + r.chaos.restarted.Round(time.Millisecond).String()
	}
	if r.chaos.notRun {
		text += ", restart of the database not run"
	}
	return text
}
