package e2e_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/robustness/failpoint"
)

const (
	// lanes is how many runs are in flight. Most of a run is a wait for a
	// lease.
	lanes = 6
	// sampleLanes leave the machine to the other tests.
	sampleLanes = 3
	// freshAfter is after how many runs a place is left for a new one: an audit
	// reads all that ever happened in it.
	freshAfter = 20
	// absences is how often a run is done again whose point did not come up. It came
	// up in both recordings, and what a race decides may do so by chance.
	absences = 11
)

// walker walks targets in several lanes, each with places of its own.
type walker struct {
	grounds *grounds
	report  func(format string, args ...any)

	mu    sync.Mutex
	lines map[string]*line
	order []string
	stood map[string]bool // points at which a paused victim stood in its rival's way
}

// line counts a course's runs.
type line struct {
	scenario, program                                            string
	points, runs, fired, again, pairs, repeated, gaveUp, violate int
	took                                                         time.Duration
}

func (l *line) add(other *line) {
	l.points += other.points
	l.runs += other.runs
	l.fired += other.fired
	l.again += other.again
	l.pairs += other.pairs
	l.repeated += other.repeated
	l.gaveUp += other.gaveUp
	l.violate += other.violate
	l.took += other.took
}

func (w *walker) line(scenario, program string) *line {
	name := scenario + "/" + program
	if w.lines[name] == nil {
		w.lines[name] = &line{scenario: scenario, program: program}
		w.order = append(w.order, name)
	}
	return w.lines[name]
}

// each does jobs in lanes, until all are done or one returns an error.
func each[J any](ctx context.Context, g *grounds, jobs []J, do func(context.Context, *place, J) error) error {
	lanes, ctx := errgroup.WithContext(ctx)
	lanes.SetLimit(g.lanes)
	for _, j := range jobs {
		lanes.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			p, err := g.take(ctx)
			if err != nil {
				return err
			}
			err = do(ctx, p, j)
			p.spoiled = p.spoiled || err != nil
			return errors.Join(err, g.leave(ctx, p))
		})
	}
	return lanes.Wait()
}

// scenarioProgram is a scenario through a program.
type scenarioProgram struct {
	scenario scenario
	program  string
}

// courses records every scenario through every program.
func (w *walker) courses(ctx context.Context, wanted func(scenario, program string) bool) ([]course, error) {
	var ways []scenarioProgram
	for _, s := range scenarios() {
		for _, program := range s.programs {
			if wanted(s.name, program) || s.name == "success" && wanted("start", program) {
				ways = append(ways, scenarioProgram{s, program})
			}
		}
	}
	rests, err := w.rests(ctx, ways)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var found []course
	err = each(ctx, w.grounds, ways, func(ctx context.Context, p *place, way scenarioProgram) error {
		own, start, err := p.record(ctx, way.scenario, way.program, rests[way.program])
		if err != nil {
			return fmt.Errorf("record %s/%s: %w", way.scenario.name, way.program, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if wanted(own.scenario.name, own.program) {
			found = append(found, own)
		}
		if way.scenario.name == "success" && wanted("start", own.program) {
			found = append(found, start)
		}
		return nil
	})
	slices.SortFunc(found, func(a, b course) int {
		return cmp.Or(cmp.Compare(placeOf(a), placeOf(b)), cmp.Compare(a.program, b.program))
	})
	for _, c := range found {
		w.line(c.scenario.name, c.program).points = len(c.points)
	}
	return found, err
}

// rests watches the programs with nothing to do.
func (w *walker) rests(ctx context.Context, ways []scenarioProgram) (map[string]rest, error) {
	programs := map[string]bool{}
	for _, way := range ways {
		programs[way.program] = true
	}
	var mu sync.Mutex
	found := map[string]rest{}
	err := each(ctx, w.grounds, slices.Sorted(maps.Keys(programs)), func(ctx context.Context, p *place, program string) error {
		r, err := p.watchRest(ctx, program)
		if err != nil {
			return fmt.Errorf("watch the %s at rest: %w", program, err)
		}
		mu.Lock()
		defer mu.Unlock()
		found[program] = r
		return nil
	})
	return found, err
}

// placeOf is a course's place in the order of scenarios. The start is the first.
func placeOf(c course) int {
	return slices.IndexFunc(scenarios(), func(s scenario) bool { return s.name == c.scenario.name })
}

// walk does the targets and reports what is violated, with the address by which
// it is replayed.
func (w *walker) walk(ctx context.Context, courses []course, targets []target) error {
	return each(ctx, w.grounds, targets, func(ctx context.Context, p *place, t target) error {
		i := slices.IndexFunc(courses, func(c course) bool { return c.scenario.name == t.scenario && c.program == t.program })
		if i < 0 {
			return fmt.Errorf("%s: there is no such scenario", t)
		}
		result, repeated, err := p.walkTo(ctx, courses[i], t)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		w.note(t, result, repeated)
		return nil
	})
}

// walkTo does one run, again where its point did not come up.
func (p *place) walkTo(ctx context.Context, c course, t target) (result runResult, repeated int, err error) {
	s := c.scenario
	if s.name == "start" {
		s = scenarios()[0]
	}
	aim := failpoint.Aim{Point: t.point, Side: t.side, Fault: t.fault}
	pausesInTransaction := false
	for _, point := range c.points {
		if point.Point == t.point {
			aim = point.aim(t.side, t.fault)
			pausesInTransaction = point.InTransaction && t.fault == failpoint.Pause
		}
	}
	for ; ; repeated++ {
		run := func() (runResult, error) { return p.run(ctx, s, c.program, c.known, aim, t.second) }
		if pausesInTransaction {
			result, err = p.oneAtATime(run)
		} else {
			result, err = run()
		}
		p.spoiled = p.spoiled || len(result.violations) > 0 || err != nil
		if err != nil || result.fired || p.spoiled || repeated == absences {
			return result, repeated, err
		}
	}
}

// oneAtATime does a run in which a victim is paused in a transaction.
func (g *grounds) oneAtATime(run func() (runResult, error)) (runResult, error) {
	g.pausedInTransaction.Lock()
	defer g.pausedInTransaction.Unlock()
	return run()
}

func (w *walker) note(t target, r runResult, repeated int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := line{runs: 1, repeated: repeated, took: r.took, violate: len(r.violations), fired: number(r.fired), gaveUp: number(r.gaveUp)}
	if t.second > 0 {
		one.pairs, one.again = 1, number(r.again)
	}
	w.line(t.scenario, t.program).add(&one)
	if r.gaveUp {
		w.stood[t.point.Name] = true
	}
	replay := fmt.Sprintf("repeat: go test ./e2e -run 'TestWalk$' -walk='%s'", t)
	if !r.fired {
		w.report("%s did not come up in %d runs; %s", t, repeated+1, replay)
	}
	for _, violation := range r.violations {
		w.report("%s: %s; %s", t, violation, replay)
	}
}

func number(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// print writes the table of what was walked.
func (w *walker) print(to io.Writer, took time.Duration) {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "scenario\tprogram\tpoints\truns\tfired\trepeated\tsecond crashes\trival gave up\tviolations\tseconds\t")
	sum := line{scenario: "all"}
	row := func(l *line) {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%d of %d\t%d\t%d\t%.1f\t\n",
			l.scenario, l.program, l.points, l.runs, l.fired, l.repeated, l.again, l.pairs, l.gaveUp, l.violate, l.took.Seconds())
	}
	for _, name := range w.order {
		row(w.lines[name])
		sum.add(w.lines[name])
	}
	row(&sum)
	_ = table.Flush()
	fmt.Fprintf(to, "%d planned, %d fired, %d violations in %.1f s, %d at a time\n",
		sum.runs, sum.fired, sum.violate, took.Seconds(), w.grounds.lanes)
	if sum.violate == 0 && sum.runs > 0 {
		fmt.Fprintf(to, "no violation in %d runs: the rate is below %.2f%% with 95%% confidence, for runs drawn like these\n",
			sum.runs, 300/float64(sum.runs))
	}
	if sum.gaveUp > 0 {
		fmt.Fprintf(to, "a rival gave up after %s; in a transaction the victim keeps its locks until it goes on or the database ends it after 10 s. It stood at:\n  %s\n",
			rivalPatience, strings.Join(slices.Sorted(maps.Keys(w.stood)), "\n  "))
	}
}
