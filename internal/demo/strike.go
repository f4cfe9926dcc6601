package demo

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// strikes is what really happened.
type strikes struct {
	blow          string // what a kill was: killed, or cut off
	workerKills   int
	killsUnderWay int // of these, with charges on their way
	apiKills      int
	// restarted is how long the database's restart took; 0 is never.
	restarted time.Duration
	// notRun says that restarting the database was not the demo's to do.
	notRun bool
}

// strike breaks things while charges flow: the provider's answers first, then
// what the plan says, one after another. It ends early, without an error, when
// the time is up.
func strike(ctx context.Context, stage stage, sandbox sandboxClient, plan Plan, tally *tally, now func() time.Time) (strikes, error) {
	hand := striker{stage: stage, sandbox: sandbox, tally: tally, now: now, done: tally.strikes()}
	began := now()
	err := hand.outage(ctx)
	if err == nil {
		err = sandbox.setFaults(ctx, weather(plan.Seed))
	}
	for _, next := range plan.Strikes {
		if err != nil {
			break
		}
		if err = wait(ctx, next.At-now().Sub(began)); err == nil {
			err = hand.carryOut(ctx, next)
		}
		tally.note(hand.done)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return hand.done, err
}

// striker carries out strikes and counts them.
type striker struct {
	stage   stage
	sandbox sandboxClient
	tally   *tally
	now     func() time.Time
	done    strikes
}

func (s *striker) carryOut(ctx context.Context, next Strike) error {
	switch next.Kind {
	case KillWorker:
		underWay := s.awaitCharges(ctx)
		if err := s.stage.killWorker(ctx, next.Which); err != nil {
			return fmt.Errorf("kill a worker: %w", err)
		}
		s.done.workerKills++
		if underWay {
			s.done.killsUnderWay++
		}
	case KillAPI:
		if err := s.stage.killAPI(ctx, next.Which); err != nil {
			return fmt.Errorf("kill an api: %w", err)
		}
		s.done.apiKills++
	case RestartDatabase:
		began := s.now()
		err := s.stage.restartDatabase(ctx)
		if errors.Is(err, errNotRun) {
			s.done.notRun = true
			return nil
		}
		if err != nil {
			return fmt.Errorf("restart the database: %w", err)
		}
		s.done.restarted = max(time.Millisecond, s.now().Sub(began))
	}
	return nil
}

// awaitCharges waits a moment for a charge to be under way, so that a kill does
// not meet an idle worker, and says whether there is one.
func (s *striker) awaitCharges(ctx context.Context) bool {
	const looks = 50
	for range looks {
		if s.tally.underWay() > 0 || wait(ctx, 10*time.Millisecond) != nil {
			break
		}
	}
	return s.tally.underWay() > 0
}

// outage is how the demo begins: the provider and the shop carry out whatever
// they are asked and answer nothing. It ends when they were asked a few times.
func (s *striker) outage(ctx context.Context) error {
	const (
		requests = 4
		looks    = 100
		pause    = 50 * time.Millisecond
	)
	before, err := s.sandbox.books(ctx)
	if err != nil {
		return err
	}
	if err := s.sandbox.setFaults(ctx, faults{DropAfter: 1}); err != nil {
		return err
	}
	for range looks {
		if err := wait(ctx, pause); err != nil {
			return err
		}
		now, err := s.sandbox.books(ctx)
		if err != nil {
			return err
		}
		if now.Requests >= before.Requests+requests {
			break
		}
	}
	return nil
}

// weather is what the provider and the shop are like for the rest of the demo.
func weather(seed uint64) faults {
	return faults{
		Seed:       seed,
		DropBefore: 0.05,
		DropAfter:  0.05,
		Error500:   0.03,
		Slow:       slow{P: 0.1, Milliseconds: 300},
	}
}

// wait waits for a pause, or until ctx ends and then returns its error.
func wait(ctx context.Context, pause time.Duration) error {
	if pause <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
