package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

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
	idle         chan *testbed // that the next run may use
}

// newWalker makes a walker, which closes its testbeds when the test ends.
func newWalker(t *testing.T, programs harness.Binaries) *walker {
	t.Helper()
	w := &walker{on: made(t, shared), programs: programs, dir: t.TempDir(), parallelRuns: parallelRuns, idle: make(chan *testbed, parallelRuns)}
	t.Cleanup(func() {
		close(w.idle)
		for p := range w.idle {
			if err := p.close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

// each does jobs in parallel, until all are done or one returns an error. An audit reads
// everything that ever happened in a testbed, so one that had many runs is closed.
func each[J any](ctx context.Context, w *walker, jobs []J, do func(context.Context, *testbed, J) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(w.parallelRuns)
	for _, j := range jobs {
		group.Go(func() (err error) {
			var p *testbed
			select {
			case p = <-w.idle:
			default:
				p, err = w.newTestbed(ctx)
			}
			if err != nil {
				return err
			}
			err = do(ctx, p, j)
			if err == nil && p.runs < freshAfter && !p.spoiled {
				w.idle <- p
				return nil
			}
			p.spoiled = p.spoiled || err != nil
			return errors.Join(err, p.close(context.WithoutCancel(ctx)))
		})
	}
	return group.Wait()
}

// recordings records what is wanted, and first the start of each program.
func (w *walker) recordings(ctx context.Context, wanted func(scenario, program string) bool) (found []recording, err error) {
	starts := map[string]*recording{} // by program
	var all, others []*recording
	for _, s := range scenarios() {
		for _, program := range s.programs {
			c := &recording{scenario: s, program: program}
			if s.name == start {
				starts[program] = c
			} else if wanted(s.name, program) {
				others = append(others, c)
			}
			if wanted(s.name, program) {
				all = append(all, c)
			}
		}
	}
	if err = each(ctx, w, slices.Collect(maps.Values(starts)), func(ctx context.Context, p *testbed, c *recording) error {
		return c.record(nil, func() (runResult, error) { return p.rest(ctx, c.program) })
	}); err != nil {
		return nil, err
	}
	err = each(ctx, w, others, func(ctx context.Context, p *testbed, c *recording) error {
		return c.record(starts[c.program], func() (runResult, error) { return p.run(ctx, *c, crashAim{}) })
	})
	for _, c := range all {
		found = append(found, *c)
	}
	return found, err
}

// walk does the targets, and reports what is violated.
func (w *walker) walk(ctx context.Context, recordings []recording, targets []target, report func(at target, violation string)) error {
	var mu sync.Mutex
	return each(ctx, w, targets, func(ctx context.Context, p *testbed, t target) error {
		i := slices.IndexFunc(recordings, func(c recording) bool { return c.scenario.name == t.scenario && c.program == t.program })
		violations, err := p.walkTo(ctx, recordings[i], t)
		mu.Lock()
		defer mu.Unlock()
		for _, violation := range violations {
			report(t, violation)
		}
		if err != nil {
			report(t, err.Error()) // what breaks may come before the point
		}
		return err
	})
}

// walkTo does one run, again where its point did not come up.
func (p *testbed) walkTo(ctx context.Context, c recording, t target) ([]string, error) {
	for range attempts {
		result, err := p.run(ctx, c, t.crashAim)
		p.spoiled = len(result.violations) > 0
		if err != nil || result.fired || p.spoiled {
			return result.violations, err
		}
	}
	return []string{fmt.Sprintf("not walked: its point did not come up in %d runs", attempts)}, nil
}
