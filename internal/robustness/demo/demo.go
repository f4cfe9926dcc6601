// Package demo runs the whole service under faults and then checks whether every
// promise held: the real programs as child processes, charges, refunds and
// cancellations whose requests are sent three times each, a provider that loses
// answers and repeats its webhooks, SIGKILLs of workers and of an api, and an
// immediate restart of the database, all while charges flow.
//
// It sees the service from outside: through HTTP, through the sandbox's records and
// through `payonce audit`. It imports none of the service's packages, so it cannot
// share a mistake with them.
//
// When it ends, no process, no database and no folder remains, also after a SIGKILL;
// only the databases on a server of the user's own then stay. The demo does not show
// power loss, a broken disk, or a provider that breaks its own contract.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/payonce/payonce/internal/robustness/fleet"
	"github.com/payonce/payonce/internal/robustness/traffic"
	"github.com/payonce/payonce/internal/robustness/validate"
)

// ErrBroken says that a promise did not hold.
var ErrBroken = errors.New("a promise was broken")

// Options configure a demo.
type Options struct {
	// Charges is how many charges are made, at least 1.
	Charges int
	// Seed chooses the charges, the faults and the kills; 0 draws one.
	Seed uint64
	// Keep leaves everything running after the audit, until ctx ends.
	Keep bool
	// JSON prints the audit as JSON on Stdout and everything else on Stderr.
	JSON bool
	// Database is the URL of a server to use instead of one of the demo's own.
	Database string
	// Running, if set, uses services that run already.
	Running *Running
	// ConsoleURL, if set, is where a web console is, which says that it waits for the database.
	ConsoleURL string
	// Show, if set, shows the service of a database there until ctx ends.
	Show func(ctx context.Context, database string) error

	// Lab, if set, acts while charges flow and, with Keep, after the audit.
	Lab *Lab
	// Commands, if set, names actions of the lab, one on a line, for Keep.
	Commands io.Reader
	// Live rewrites a line on Stderr, a terminal, with how far the charges have come.
	Live bool

	Stdout io.Writer
	Stderr io.Writer
	Now    func() time.Time

	lab *fleet.Binaries // of the guard lab, which has built them
}

// say prints a line on stderr, whose errors do not end the demo.
func (o Options) say(format string, args ...any) {
	_, _ = fmt.Fprintf(o.Stderr, format+"\n", args...)
}

// stage is what the demo runs on: its own processes, or services that run already.
type stage interface {
	target() traffic.Target
	// killed is what a kill is on this stage, for the report.
	killed() string
	// kill kills one of the two workers or apis and starts it again.
	kill(ctx context.Context, program string, which int) error
	// restartDatabase restarts the server without a shutdown, or returns errNotRun
	// where the server is not the demo's.
	restartDatabase(ctx context.Context) error
	// audit runs `payonce audit --json` and returns its output.
	audit(ctx context.Context) ([]byte, error)
	// database is the URL of the service's database.
	database() string
	// losses are the programs that ended and were not killed, and the number of all
	// programs; 0 if they are not the demo's.
	losses() (lost []string, all int)
	// introduction is what a visitor needs to look around.
	introduction() string
	// close stops everything and removes what was made.
	close(ctx context.Context) error
}

var (
	// errNotRun says that a part of the demo is not possible on this stage.
	errNotRun  = errors.New("not run")
	errStopped = errors.New("stopped before the audit")
)

const (
	// closeTimeout bounds the end of the demo: a program has 10 s to drain.
	closeTimeout = 20 * time.Second
	// trafficTimeout bounds the wait for the last charge, after it was sent.
	trafficTimeout = 90 * time.Second
	// progressPause lies between two lines that say how far the charges have come, livePause
	// between two forms of such a line.
	progressPause = 3 * time.Second
	livePause     = 200 * time.Millisecond
	// repetitions is how often the provider's webhooks are sent again at the end.
	repetitions = 2
)

// Run runs the demo. It returns nil if every promise held and the faults really
// happened, and ErrBroken if not.
func Run(ctx context.Context, o Options) error {
	switch {
	case o.Charges < 1:
		return fmt.Errorf("--charges is %d: it must be at least 1", o.Charges)
	case o.Running != nil && (o.Keep || o.Database != ""):
		return errors.New("--running plays on services that run already: leave out --keep and --database")
	}
	err := o.run(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: %w", errStopped, err)
	}
	return err
}

func (o Options) run(ctx context.Context) (err error) {
	if o.Seed == 0 {
		o.Seed = newSeed()
	}
	r := &run{Options: o}
	r.Plan = traffic.NewPlan(o.Seed, o.Charges, newRunName())
	if o.ConsoleURL != "" {
		o.say("console: %s", o.ConsoleURL)
	}
	o.say("payonce demo: %d charges, every request sent three times, seed %d", o.Charges, o.Seed)
	if o.Running != nil {
		r.Plan.Stock = nil // others have supplied it, and earlier runs have sold of it
		r.stage, err = openRunning(ctx, *o.Running)
	} else {
		r.stage, err = openOwn(ctx, o, r.Plan)
	}
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, r.stage.close(ctx))
	}()
	defer r.show(ctx)()
	if o.Lab == nil {
		r.Lab = &Lab{}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer r.Lab.close()
	defer cancel()
	audit, err := r.playAndAudit(ctx)
	if err != nil {
		return err
	}
	if err := r.report(audit); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	if o.Keep {
		o.say("%s", r.stage.introduction())
		if o.Commands != nil {
			o.say("%s", r.Lab.names())
			go r.Lab.obey(ctx, o, o.Commands) // a read from a terminal ends with the program
		}
		<-ctx.Done()
	}
	if !audit.OK {
		return fmt.Errorf("%w: %s", ErrBroken, audit.Violated())
	}
	return nil
}

// show shows the service in the console until the function that it returns is called.
func (r *run) show(ctx context.Context) (hide func()) {
	own, ok := r.stage.(*own)
	if !ok || r.Show == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var shown sync.WaitGroup
	shown.Go(func() {
		if err := r.Show(ctx, own.Service); err != nil && ctx.Err() == nil {
			r.say("the console shows nothing: %v", err)
		}
	})
	return func() { cancel(); shown.Wait() }
}

// run is one demo with what it has observed.
type run struct {
	Options
	validate.Evidence

	stage   stage
	sandbox traffic.Sandbox
	sender  *traffic.Traffic
	tally   traffic.Tally
	took    time.Duration
	kills   int // by actions of the lab, one at a time: they take turns in the programs

	breaking sync.Mutex       // of Chaos and what follows
	faults   traffic.Faults   // the demo's own, which an action of the lab restores
	extra    []traffic.Record // of charges that the lab sent
}

// playAndAudit lets charges flow, and audits when no action of the lab is in flight.
func (r *run) playAndAudit(ctx context.Context) (validate.Audit, error) {
	target := r.stage.target()
	r.sandbox, r.Chaos.Killed = traffic.Sandbox(target.Sandbox), r.stage.killed()
	r.sender = traffic.New(target, &r.tally)
	began := r.Now()
	var err error
	if r.Before, err = r.sandbox.Books(ctx); err != nil {
		return validate.Audit{}, err
	}
	r.Lab.open(ctx, r)
	if err := r.flow(ctx); err != nil {
		return validate.Audit{}, err
	}
	r.Lab.mu.Lock()
	defer r.Lab.mu.Unlock()
	r.Records = append(r.Records, r.extra...)
	if err := r.observe(ctx); err != nil {
		return validate.Audit{}, err
	}
	r.took = r.Now().Sub(began)
	r.say("auditing")
	return r.audit(ctx)
}

// observe reads what is left of the evidence when every charge has its outcome.
func (r *run) observe(ctx context.Context) (err error) {
	if r.Repeated, err = r.sandbox.RepeatWebhooks(ctx, repetitions); err != nil {
		return err
	}
	r.sender.Reread(ctx, r.Records)
	r.Listed = r.sender.List(ctx)
	if r.Books, err = r.sandbox.Books(ctx); err != nil {
		return err
	}
	r.Chaos.Losses, r.Chaos.Programs = r.stage.losses()
	return nil
}

// flow is the part in which things break. When it returns, the provider has none of the demo's
// faults any more, so that the audit can ask it.
func (r *run) flow(ctx context.Context) error {
	flowing, cancel := context.WithTimeout(ctx, r.Plan.Length+trafficTimeout)
	defer cancel()
	var err error
	var striking, reporting sync.WaitGroup
	striking.Go(func() {
		if err = r.strikeAll(flowing); err != nil {
			cancel() // the charges would wait for a program that does not come back
		}
	})
	reporting.Go(func() { r.reportProgress(flowing) })
	r.Records = r.sender.Run(flowing, r.Plan)
	striking.Wait()
	cancel()
	reporting.Wait()
	// The sandbox may be another's, and continues without the demo.
	clearing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return errors.Join(err, ctx.Err(), r.setFaults(clearing, traffic.Faults{}))
}

// reportProgress says how far the charges have come until ctx ends. In a terminal it rewrites the
// line until the next one is due.
func (r *run) reportProgress(ctx context.Context) {
	const startOfLine = "\r\x1b[K"
	line := func() string {
		return fmt.Sprintf("%d of %d charges ended; %s", r.tally.Ended.Load(), len(r.Plan.Charges), r.broken())
	}
	pause, start := progressPause, ""
	if r.Live {
		pause, start = livePause, startOfLine
	}
	for since := r.Now(); traffic.Wait(ctx, pause) == nil; {
		if r.Now().Sub(since) < progressPause {
			_, _ = fmt.Fprint(r.Stderr, start, line())
			continue
		}
		since = r.Now()
		r.say("%s%s", start, line())
	}
	r.say("%s%s", start, line())
}

// setFaults replaces the faults of the sandbox, and those that the lab restores.
func (r *run) setFaults(ctx context.Context, f traffic.Faults) error {
	r.breaking.Lock()
	r.faults = f
	r.breaking.Unlock()
	return r.sandbox.SetFaults(ctx, f)
}

// audit is the service's own audit, reconciled with the provider, and after it what
// was observed from outside.
func (r *run) audit(ctx context.Context) (validate.Audit, error) {
	text, err := r.stage.audit(ctx)
	if err == nil || len(text) > 0 {
		audit, unreadable := validate.ReadAudit(text)
		if unreadable == nil && (err == nil || !audit.OK) {
			return audit.With(validate.Judge(r.Evidence)...), nil
		}
		err = errors.Join(err, unreadable)
	}
	return validate.Audit{}, fmt.Errorf("audit: %w", err)
}
