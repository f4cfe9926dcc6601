package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/failpoint"
)

// runResult is what became of one run.
type runResult struct {
	violations []string
	fired      bool
	again      bool // the second crash fired too
	gaveUp     bool // the rival of a paused victim could not finish
	points     []failpoint.Seen
	took       time.Duration
}

// running is one run: a job, a victim and a plan.
type running struct {
	*place
	program string
	job     job
	aim     failpoint.Aim
	second  int // the point of the recovery after which it is killed again; 0 for never
	known   failpoint.Known
	victim  *victim
	ctx     context.Context //nolint:containedctx // a strike happens on a connection's own goroutine

	striking atomic.Int64
	over     atomic.Bool // the victim is wanted no more
	missed   atomic.Bool // the plan came to its aim when all was over, or its victim had ended

	mu      sync.Mutex
	current int // request
	answers [][]answer
	result  runResult
	errs    []error
	plans   []*failpoint.Plan
}

// run does one job with one plan against a program that has just been started.
// Errors are of the harness itself; what is wrong with the service is in the
// result.
func (p *place) run(ctx context.Context, s scenario, program string, known failpoint.Known, aim failpoint.Aim, second int) (runResult, error) {
	begun := time.Now()
	p.runs++
	j, err := s.prepare(ctx, p)
	if err != nil {
		return runResult{}, fmt.Errorf("prepare: %w", err)
	}
	r := &running{
		place: p, program: program, job: j, aim: aim, second: second, known: known, ctx: ctx,
		victim: p.victim(program), answers: make([][]answer, len(j.requests)),
	}
	plan := failpoint.NewPlan(aim, known, r.strike)
	r.plans = []*failpoint.Plan{plan}
	if program == "worker" {
		if err := r.send(ctx, p.direct); err != nil {
			return runResult{}, err
		}
		if j.before != nil {
			if err := j.before(ctx, p); err != nil {
				return runResult{}, fmt.Errorf("prepare: %w", err)
			}
		}
	}
	p.arm(program, plan)
	r.victim.live(ctx)
	err = r.finish(ctx)
	r.end()
	p.disarm()
	if n := r.victim.ended; n > 0 {
		r.complain(fmt.Sprintf("the %s ended by itself, %d times", program, n))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.points = plan.Points()
	r.result.fired = plan.Fired() && !r.missed.Load()
	r.result.again = len(r.plans) > 1 && r.plans[1].Fired()
	r.result.took = time.Since(begun)
	return r.result, errors.Join(append(r.errs, err)...)
}

// finish waits until the job is done, and judges it.
func (r *running) finish(ctx context.Context) error {
	if r.program == "api" {
		if err := r.send(ctx, r.victim.url); err != nil {
			return r.unlessLate(err)
		}
		r.settle(ctx)
		r.end()
		if err := r.finishAll(ctx); err != nil {
			return r.unlessLate(err)
		}
		return r.judge(ctx)
	}
	if err := r.quiet(ctx, walkStall); err != nil {
		return r.unlessLate(err)
	}
	r.settle(ctx)
	if err := r.quiet(ctx, walkStall); err != nil {
		return r.unlessLate(err)
	}
	r.end() // its polls would only slow the others down
	return r.judge(ctx)
}

// end ends the victim for good, after the strike that may be in flight.
func (r *running) end() {
	r.over.Store(true)
	_ = await.Within(walkStall, func() bool { return r.striking.Load() == 0 })
	r.victim.end()
}

// unlessLate turns the end of patience into a violation.
func (r *running) unlessLate(err error) error {
	if errors.Is(err, errNotQuiet) || errors.Is(err, context.DeadlineExceeded) {
		r.complain("liveness: " + err.Error())
		return nil
	}
	return err
}

func (r *running) complain(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.violations = append(r.result.violations, what)
}

// send sends the job's requests, each until it is answered. While one is paused
// or killed the client waits with it.
func (r *running) send(ctx context.Context, url func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, await.Stall)
	defer cancel()
	for i, request := range r.job.requests {
		r.mu.Lock()
		r.current = i
		r.mu.Unlock()
		got, err := r.insist(ctx, url, request)
		if err != nil {
			return err
		}
		r.note(i, got)
		if r.job.twice {
			if got, err = r.insist(ctx, url, request); err != nil {
				return err
			}
			r.note(i, got)
		}
	}
	return nil
}

func (r *running) note(i int, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[i] = append(r.answers[i], a)
}

// How long a program does nothing but poll before it counts as done: so long that
// each poll has come, which a plan may wait for, and longer for one that was stopped
// and has to find its feet.
const (
	calm           = 100 * time.Millisecond
	calmAfterPause = 150 * time.Millisecond
)

// settle waits until the fault is over and the victim has come to rest. What it
// still does after the tables are quiet may be the very thing that should not
// happen.
func (r *running) settle(ctx context.Context) {
	rest := calm
	if r.aim.Fault == failpoint.Pause {
		rest = calmAfterPause
	}
	_ = await.Within(walkStall, func() bool { return r.striking.Load() == 0 || ctx.Err() != nil })
	_ = await.Within(time.Second, func() bool {
		before := r.ended()
		pause(ctx, rest)
		return before == r.ended()
	})
}

// ended is how many points of all lives have ended.
func (r *running) ended() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, plan := range r.plans {
		n += plan.Ended()
	}
	return n
}

// strike is called once, with the connection of the point held.
func (r *running) strike(f failpoint.Fault) {
	r.striking.Add(1)
	defer r.striking.Add(-1)
	if r.over.Load() {
		r.missed.Store(true)
		return
	}
	r.mu.Lock()
	i := r.current
	r.mu.Unlock()
	if r.job.twice {
		r.sendElsewhere(i, 300*time.Millisecond)
	}
	if f == failpoint.Kill {
		r.killed(r.second)
	}
	if f == failpoint.Pause {
		r.paused(i)
	}
}

// killed kills the victim. Its next life is watched by a plan of its own, which
// may kill it once more.
func (r *running) killed(second int) {
	next := failpoint.NewPlan(failpoint.Aim{Nth: second, Fault: failpoint.Kill}, r.known, func(failpoint.Fault) {
		r.killed(0)
	})
	r.signaled(syscall.SIGKILL)
	r.arm(r.program, next)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plans = append(r.plans, next)
}

func (r *running) fail(err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

// rivalPatience is how long a paused victim's rival tries before the victim goes
// on. It is shorter than the database's patience with a transaction that stands
// still (idle_in_transaction_session_timeout, 10 s), so a rival that stands before
// the victim's lock gives up, which is legal.
const rivalPatience = 2500 * time.Millisecond

// paused stops the victim while a rival does its work.
func (r *running) paused(i int) {
	if !r.signaled(syscall.SIGSTOP) {
		return
	}
	finished := false
	if r.program == "api" {
		finished = r.sendElsewhere(i, rivalPatience)
	} else if helper, err := r.helper(r.ctx, "1"); err != nil {
		r.fail(err)
	} else {
		finished = r.quiet(r.ctx, rivalPatience) == nil
		r.fail(helper.Kill())
	}
	r.mu.Lock()
	r.result.gaveUp = !finished
	r.mu.Unlock()
	r.signaled(syscall.SIGCONT)
}

// signaled signals the victim, whether or not it listens yet, and reports whether the
// signal arrived. A signal to a program that had ended by itself is no fault that the
// walk may count.
func (r *running) signaled(s syscall.Signal) bool {
	var err error
	r.victim.locked(func() {
		if s == syscall.SIGKILL {
			r.victim.strikes++
		}
		err = syscall.Kill(r.victim.pid, s)
	})
	if errors.Is(err, syscall.ESRCH) {
		r.missed.Store(true)
		return false
	}
	r.fail(err)
	return err == nil
}

// sendElsewhere sends the request of the moment to the api that nothing happens
// to, as a client does that has waited too long.
func (r *running) sendElsewhere(i int, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	got, err := r.insist(ctx, r.direct, r.job.requests[i])
	if err != nil {
		return false
	}
	r.note(i, got)
	return true
}

// judge checks every invariant.
func (r *running) judge(ctx context.Context) error {
	first := make([]answer, len(r.job.requests))
	for i, request := range r.job.requests {
		again, err := r.insist(ctx, r.direct, request)
		if err != nil {
			return err
		}
		r.note(i, again)
		first[i] = r.answers[i][0]
		for _, other := range r.answers[i][1:] {
			if complaint := differ(first[i], other); complaint != "" && request.key != "" {
				r.complain("one stored answer per key: " + complaint)
			}
		}
	}
	complaint, err := r.job.want(ctx, r.place, first)
	if err != nil {
		return err
	}
	if complaint != "" {
		r.complain("the outcome: " + complaint)
	}
	report, err := r.audited(ctx)
	if err != nil {
		return err
	}
	for _, c := range report.Checks {
		if c.Violated > 0 {
			r.complain(fmt.Sprintf("%s: %d of %d, %q", c.Name, c.Violated, c.Checked, c.Examples))
		}
	}
	return nil
}
