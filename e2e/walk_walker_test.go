package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/robustness/harness"
)

const (
	// parallelRuns is how many runs are in flight. Most of a run is a wait for a
	// lease.
	parallelRuns = 6
	// sampleParallelRuns leaves the machine to the other tests.
	sampleParallelRuns = 3
	// freshAfter is after how many runs a testbed is closed and a new one is made: an audit
	// reads all that ever happened in it.
	freshAfter = 20
	// attempts is how often a run is done whose point does not come up. The point came up in
	// both recordings, and a race may decide whether it does. A point that no attempt reaches
	// fails the walk.
	attempts = 32
)

// walker runs targets in parallel, each in its own testbed.
type walker struct {
	on           *server
	programs     harness.Binaries // those under test; of a mutant where one is hunted
	dir          string
	parallelRuns int
	report       func(format string, args ...any)

	mu   sync.Mutex
	idle []*testbed // that the next run may use
	done []walked

	// While a victim is paused in a transaction, followers of the ledger see nothing
	// that commits later, in any database of the server. So one victim is paused
	// in a transaction at a time.
	pausedInTransaction sync.Mutex
}

// newWalker makes a walker, which closes its testbeds when the test ends.
func newWalker(t *testing.T, programs harness.Binaries) *walker {
	t.Helper()
	w := &walker{on: sharedServer(t), programs: programs, dir: t.TempDir(), parallelRuns: parallelRuns, report: t.Errorf}
	t.Cleanup(func() {
		for _, p := range w.idle {
			if err := p.close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

// walked is a run that was done, with the number of those before it in which its
// point did not come up.
type walked struct {
	target
	runResult
	repeated int
}

// each does jobs in parallel, until all are done or one returns an error.
func each[J any](ctx context.Context, w *walker, jobs []J, do func(context.Context, *testbed, J) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(w.parallelRuns)
	for _, j := range jobs {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			p, err := w.take(ctx)
			if err != nil {
				return err
			}
			err = do(ctx, p, j)
			p.spoiled = p.spoiled || err != nil
			return errors.Join(err, w.leave(ctx, p))
		})
	}
	return group.Wait()
}

// recordings records every scenario through every program. The first that needs it
// watches the program with nothing to do.
func (w *walker) recordings(ctx context.Context, wanted func(scenario, program string) bool) (found []recording, err error) {
	type task struct{ recording, own, start recording }
	var tasks []*task
	rests := map[string]*rest{}
	for _, s := range scenarios() {
		for _, program := range s.programs {
			if wanted(s.name, program) || s.name == "success" && wanted("start", program) {
				tasks = append(tasks, &task{recording: recording{scenario: s, program: program}})
				rests[program] = &rest{}
			}
		}
	}
	err = each(ctx, w, tasks, func(ctx context.Context, p *testbed, task *task) (err error) {
		c, r := &task.recording, rests[task.recording.program]
		r.once.Do(func() { r.err = p.watchRest(ctx, c.program, r) })
		if r.err != nil {
			return fmt.Errorf("watch the %s at rest: %w", c.program, r.err)
		}
		if task.own, task.start, err = p.record(ctx, *c, r); err != nil {
			return fmt.Errorf("record %s/%s: %w", c.scenario.name, c.program, err)
		}
		return nil
	})
	for _, task := range tasks {
		if task.recording.scenario.name == "success" && wanted("start", task.recording.program) {
			found = append(found, task.start)
		}
		if wanted(task.recording.scenario.name, task.recording.program) {
			found = append(found, task.own)
		}
	}
	return found, err
}

// walk does the targets and reports what is violated, with the address by which
// it is replayed.
func (w *walker) walk(ctx context.Context, recordings []recording, targets []target) error {
	return each(ctx, w, targets, func(ctx context.Context, p *testbed, t target) error {
		i := slices.IndexFunc(recordings, func(c recording) bool { return c.scenario.name == t.scenario && c.program == t.program })
		if i < 0 {
			return fmt.Errorf("%s: there is no such scenario", t)
		}
		result, err := p.walkTo(ctx, recordings[i], t)
		w.mu.Lock()
		defer w.mu.Unlock()
		if err != nil {
			result.violations = append(result.violations, err.Error()) // what breaks may come before the point
		}
		w.done = append(w.done, result)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		replay := fmt.Sprintf("repeat: go test ./e2e -run 'TestWalk$' -walk='%s'", t)
		if !result.fired {
			w.report("%s: not walked: its point did not come up in %d runs; %s", t, result.repeated+1, replay)
		}
		for _, violation := range result.violations {
			w.report("%s: %s; %s", t, violation, replay)
		}
		return nil
	})
}

// walkTo does one run, again where its point did not come up.
func (p *testbed) walkTo(ctx context.Context, c recording, t target) (walked, error) {
	if c.scenario.name == "start" {
		c.scenario = scenarios()[0]
	}
	for _, point := range c.points {
		if point.crashPoint == t.point && point.inTransaction && t.fault == faultPause {
			p.pausedInTransaction.Lock()
			defer p.pausedInTransaction.Unlock()
		}
	}
	for repeated := 0; ; repeated++ {
		result, err := p.run(ctx, c, t.crashAim)
		p.spoiled = p.spoiled || len(result.violations) > 0 || err != nil
		if err != nil || result.fired || p.spoiled || repeated+1 == attempts {
			return walked{t, result, repeated}, err
		}
	}
}

// summary says what was walked.
func (w *walker) summary(took time.Duration) string {
	var fired, again, pairs, violations int
	for _, one := range w.done {
		fired, violations = fired+number(one.fired), violations+len(one.violations)
		again, pairs = again+number(one.again), pairs+number(one.second > 0)
	}
	text := fmt.Sprintf("%d runs, %d at a time, in %.1f s: %d fired, %d of %d second crashes, %d violations",
		len(w.done), w.parallelRuns, took.Seconds(), fired, again, pairs, violations)
	if violations == 0 && len(w.done) > 0 {
		text += "; " + none(len(w.done), "runs")
	}
	return text
}
