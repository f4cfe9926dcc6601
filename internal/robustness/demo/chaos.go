package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/payonce/payonce/internal/robustness/traffic"
	"github.com/payonce/payonce/internal/robustness/validate"
)

// strike is something that breaks at a time, counted from the start. The provider's
// faults are no strike: they last for the whole demo.
type strike struct {
	at    time.Duration
	kind  strikeKind
	which int // of the programs
}

type strikeKind string

const (
	killWorker      strikeKind = "kill worker"
	killAPI         strikeKind = "kill api"
	restartDatabase strikeKind = "restart database"
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

// striker carries out strikes and counts them.
type striker struct {
	stage   stage
	sandbox traffic.Sandbox
	tally   *traffic.Tally
	now     func() time.Time

	mu   sync.Mutex
	done validate.Chaos
}

func newStriker(stage stage, sandbox traffic.Sandbox, tally *traffic.Tally, now func() time.Time) *striker {
	return &striker{stage: stage, sandbox: sandbox, tally: tally, now: now, done: validate.Chaos{Blow: stage.blow()}}
}

// chaos is what was broken so far.
func (s *striker) chaos() validate.Chaos {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

func (s *striker) note(change func(*validate.Chaos)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.done)
}

// strikeAll breaks things while charges flow: the provider's answers first, then
// the strikes in turn. It ends early, without an error, when the time is up.
func (s *striker) strikeAll(ctx context.Context, seed uint64, strikes []strike) error {
	began := s.now()
	err := s.outage(ctx)
	if err == nil {
		err = s.sandbox.SetFaults(ctx, traffic.Faults{
			Seed: seed, DropBefore: 0.05, DropAfter: 0.05, Error500: 0.03, Slow: traffic.Slow{P: 0.1, Milliseconds: 300},
		})
	}
	for _, next := range strikes {
		if err == nil {
			err = wait(ctx, next.at-s.now().Sub(began))
		}
		if err == nil {
			err = s.carryOut(ctx, next)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return err
}

func (s *striker) carryOut(ctx context.Context, next strike) error {
	switch next.kind {
	case killWorker:
		inFlight := s.awaitCharges(ctx)
		if err := s.stage.killWorker(ctx, next.which); err != nil {
			return fmt.Errorf("kill a worker: %w", err)
		}
		s.note(func(c *validate.Chaos) {
			c.WorkerKills++
			if inFlight {
				c.KillsInFlight++
			}
		})
	case killAPI:
		if err := s.stage.killAPI(ctx, next.which); err != nil {
			return fmt.Errorf("kill an api: %w", err)
		}
		s.note(func(c *validate.Chaos) { c.APIKills++ })
	case restartDatabase:
		began := s.now()
		err := s.stage.restartDatabase(ctx)
		if err != nil && !errors.Is(err, errNotRun) {
			return fmt.Errorf("restart the database: %w", err)
		}
		s.note(func(c *validate.Chaos) {
			if c.NotRun = err != nil; !c.NotRun {
				c.Restarted = max(time.Millisecond, s.now().Sub(began))
			}
		})
	}
	return nil
}

// awaitCharges waits half a second for a charge to be in flight, so that a kill does
// not meet an idle worker, and reports whether one is.
func (s *striker) awaitCharges(ctx context.Context) bool {
	for range 50 {
		if s.tally.InFlight() > 0 || wait(ctx, 10*time.Millisecond) != nil {
			break
		}
	}
	return s.tally.InFlight() > 0
}

// outage is how the demo begins: the provider and the shop carry out all requests
// and answer none. It ends after a few requests.
func (s *striker) outage(ctx context.Context) error {
	const requests = 4
	before, err := s.sandbox.Books(ctx)
	if err != nil {
		return err
	}
	if err := s.sandbox.SetFaults(ctx, traffic.Faults{DropAfter: 1}); err != nil {
		return err
	}
	for range 100 {
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
		if now, err := s.sandbox.Books(ctx); err != nil || now.Requests >= before.Requests+requests {
			return err
		}
	}
	return nil
}

// wait waits for a pause, or until ctx ends and then returns its error.
func wait(ctx context.Context, pause time.Duration) error {
	select {
	case <-time.After(pause):
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
