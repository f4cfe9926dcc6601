package e2e_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testrun"
)

// runResult is what became of one run.
type runResult struct {
	violations []string
	fired      bool
	points     []planned
}

// running is one run: a job, a victim and a plan.
type running struct {
	*testbed
	program string
	job     job
	aim     crashAim
	victim  *victim
	ctx     context.Context //nolint:containedctx // a fault is injected on a connection's own goroutine

	injecting atomic.Int64
	over      atomic.Bool // the victim is wanted no more
	missed    atomic.Bool // the plan came to its aim when all was over, or its victim had ended

	mu     sync.Mutex
	first  answer
	result runResult
	plans  []*crashPlan
}

// run does one job with one plan against a program that has just been started.
// Errors are of the harness itself; what is wrong with the service is in the
// result.
func (p *testbed) run(ctx context.Context, c recording, aim crashAim) (runResult, error) {
	p.runs++
	if _, err := p.tables.Exec(ctx, setOneChargePerOrder, false); err != nil {
		return runResult{}, fmt.Errorf("prepare: %w", err)
	}
	j, err := c.scenario.prepare(ctx, p)
	if err != nil {
		return runResult{}, fmt.Errorf("prepare: %w", err)
	}
	r := p.running(ctx, c.program, aim)
	r.job = j
	if c.program == "worker" {
		if err := r.send(ctx, nil); err != nil {
			return runResult{}, err
		}
	}
	return r.live(r.finish)
}

// rest starts a program that has nothing to do, and waits until it only polls.
func (p *testbed) rest(ctx context.Context, program string) (runResult, error) {
	r := p.running(ctx, program, crashAim{})
	return r.live(func(ctx context.Context) error {
		_, err := r.victim.url(ctx)
		r.settle(ctx)
		return err
	})
}

func (p *testbed) running(ctx context.Context, program string, aim crashAim) *running {
	r := &running{testbed: p, program: program, aim: aim, ctx: ctx, victim: p.victim(program)}
	r.plans = []*crashPlan{newCrashPlan(aim, r.inject)}
	return r
}

// live starts the victim, and ends it when its job is done.
func (r *running) live(finish func(context.Context) error) (runResult, error) {
	r.arm(r.program, r.plans[0])
	r.victim.live(r.ctx)
	err := finish(r.ctx)
	if errors.Is(err, errNotQuiet) || errors.Is(err, context.DeadlineExceeded) {
		r.complain("liveness: " + err.Error())
		err = nil
	}
	r.end()
	r.disarm()
	if n := r.victim.ended; n > 0 {
		r.complain(fmt.Sprintf("the %s ended without a kill, %d times", r.program, n))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.points = r.plans[0].seen()
	r.result.fired = r.plans[0].fired() && !r.missed.Load()
	return r.result, err
}

// finish waits until the job is done, and judges it.
func (r *running) finish(ctx context.Context) error {
	if r.program == "api" {
		if err := r.send(ctx, r.victim.url); err != nil {
			return err
		}
		r.settle(ctx)
		r.end()
		if err := r.finishAll(ctx); err != nil {
			return err
		}
		return r.judge(ctx)
	}
	if err := r.quiet(ctx, walkStall); err != nil {
		return err
	}
	r.settle(ctx)
	if err := r.quiet(ctx, walkStall); err != nil {
		return err
	}
	r.end() // its polls would only slow the others down
	return r.judge(ctx)
}

// end ends the victim for good, after the fault that may be in flight.
func (r *running) end() {
	r.over.Store(true)
	_ = testrun.Within(walkStall, func() bool { return r.injecting.Load() == 0 })
	r.victim.end()
}

func (r *running) complain(what ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.violations = append(r.result.violations, what...)
}

// needs notes an error of the harness.
func (r *running) needs(err error) {
	if err != nil {
		r.complain("the harness: " + err.Error())
	}
}

// send sends the request until it is answered, waiting for a victim that is paused or
// killed. Another answer than before is a violation.
func (r *running) send(ctx context.Context, to func(context.Context) (string, error)) error {
	request := r.job.request
	request.To = to
	got, err := r.client.insist(ctx, request)
	if errors.Is(err, errDiffers) {
		r.complain("one stored answer per key: " + err.Error())
		err = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && r.first.Status == 0 {
		r.first = got
	}
	return err
}

// How long a program does nothing but poll before it counts as done: so long that
// each poll has come, which a plan may wait for, also in one that was stopped.
const (
	calm            = 150 * time.Millisecond
	calmOfRecording = 500 * time.Millisecond // it ends when all points have come, also on a busy machine
)

// settle waits until the fault is over and the victim has come to rest. What it
// still does after the tables are quiet may be the very thing that should not
// happen.
func (r *running) settle(ctx context.Context) {
	rest := calm
	if r.aim.fault == failpoint.None {
		rest = calmOfRecording
	}
	_ = testrun.Within(walkStall, func() bool { return r.injecting.Load() == 0 || ctx.Err() != nil })
	_ = testrun.Within(10*rest, func() bool {
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
		n += plan.ended()
	}
	return n
}

// inject is called once, with the connection of the point held.
func (r *running) inject(f failpoint.Fault) {
	r.injecting.Add(1)
	defer r.injecting.Add(-1)
	if r.over.Load() {
		r.missed.Store(true)
		return
	}
	if f == faultKill {
		r.killed(r.aim.second)
	}
	if f == faultPause {
		r.paused()
	}
}

// killed kills the victim. Its next life is watched by a plan of its own, which
// may kill it once more.
func (r *running) killed(second int) {
	next := newCrashPlan(crashAim{nth: second, fault: faultKill}, func(failpoint.Fault) {
		r.killed(0)
	})
	r.signaled(syscall.SIGKILL)
	r.arm(r.program, next)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plans = append(r.plans, next)
}

// rivalPatience is how long a paused victim's rival tries before the victim goes
// on. It is shorter than the database's patience with a transaction that stands
// still (idle_in_transaction_session_timeout, 10 s), so a rival that stands before
// the victim's lock gives up, which is legal.
const rivalPatience = 2500 * time.Millisecond

// paused stops the victim while a rival does its work.
func (r *running) paused() {
	if !r.signaled(syscall.SIGSTOP) {
		return
	}
	if r.program == "api" {
		ctx, cancel := context.WithTimeout(r.ctx, rivalPatience)
		_ = r.send(ctx, nil) // to the api that nothing happens to, as a client does that has waited too long
		cancel()
	} else if helper, err := r.helper(r.ctx, nil); err != nil {
		r.needs(err)
	} else {
		_ = r.quiet(r.ctx, rivalPatience) // it may give up, see above
		r.needs(helper.Kill())
	}
	r.signaled(syscall.SIGCONT)
}

// signaled signals the victim, whether or not it listens yet, and reports whether the
// signal arrived. A signal to a program that had ended before is no fault that the
// walk may count.
func (r *running) signaled(s syscall.Signal) bool {
	err := r.victim.signal(s)
	if errors.Is(err, syscall.ESRCH) {
		r.missed.Store(true)
		return false
	}
	r.needs(err)
	return err == nil
}

// judge sends the request once more and checks every invariant.
func (r *running) judge(ctx context.Context) error {
	if err := r.send(ctx, nil); err != nil {
		return err
	}
	if r.first.Status != r.job.answer {
		r.complain(fmt.Sprintf("the outcome: answered %d %s", r.first.Status, r.first.Body))
	} else {
		var got charge
		if err := r.client.get(ctx, cmp.Or(r.job.path, r.first.Header.Get("Location")), &got); err != nil {
			return err
		}
		if got.Status != r.job.status || got.Failure.Code != r.job.code {
			r.complain(fmt.Sprintf("the outcome: %s is %s %s, should be %s %s", got.ID, got.Status, got.Failure.Code, r.job.status, r.job.code))
		}
	}
	violations, err := r.verdict(ctx)
	r.complain(violations...)
	return err
}
