// Package demo runs the whole service under faults and then checks whether every
// promise held: the real programs as child processes, charges, refunds and
// cancellations whose requests are sent three times each, a provider that loses
// answers and repeats its webhooks, SIGKILLs of workers and of an api, and an
// immediate restart of the database, all while charges flow.
//
// It judges the service from outside: through HTTP, through the sandbox's records and
// through `payonce audit`. It imports none of the service's packages, so it cannot
// share a mistake with them.
//
// When it ends, no process, no database and no folder remains, also after a SIGKILL;
// only the databases on a server of the user's own then stay. The demo does not show
// power loss, a broken disk, or a provider that breaks its own contract.
//
// No library shows promises, and the package is apart from harness, since tests and bench need no demo.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/robustness/harness"
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
	// JSON prints the audit as JSON on Stdout, and says everything else.
	JSON bool
	// Database is the URL of a server to use instead of one of the demo's own.
	Database string
	// Running, if set, uses services that run already, in place of Keep and Database.
	Running *Running
	// ConsoleURL, if set, is where a web console is, which says that it waits for the database.
	ConsoleURL string
	// Show, if set, shows the service of a database there until ctx ends.
	Show func(ctx context.Context, database string) error

	// Lab acts while charges flow and, with Keep, after the audit.
	Lab *Lab
	// Commands names actions of the lab, one on a line, for Keep.
	Commands io.Reader

	Stdout io.Writer
	// Say takes each line that says how far the demo has come.
	Say func(line string)
	Now func() time.Time

	programs *harness.Binaries // of the guard lab, which has built them
}

func (o Options) say(format string, args ...any) { o.Say(fmt.Sprintf(format, args...)) }

// trafficTimeout bounds the wait for the last charge, after it was sent.
const trafficTimeout = 90 * time.Second

// closing bounds what has to be done also when ctx has ended: a program has 10 s to drain.
func closing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
}

// run is one demo with what it has observed.
type run struct {
	Options
	*stage
	evidence

	plan plan
	took time.Duration

	striking sync.Mutex     // one strike at a time: a program that starts needs the database
	kills    int            // of programs
	breaking sync.Mutex     // of chaos, faults and kills
	faults   harness.Faults // the demo's own, which an action of the lab restores
}

// Run runs the demo. It returns nil if every promise held and the faults really
// happened, and ErrBroken if not.
func Run(ctx context.Context, o Options) error {
	if o.Charges < 1 {
		return fmt.Errorf("--charges is %d: it must be at least 1", o.Charges)
	}
	err := o.run(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return fmt.Errorf("stopped before the audit: %w", err)
	}
	return err
}

func (o Options) run(ctx context.Context) (err error) {
	if o.Seed == 0 {
		o.Seed = newSeed()
	}
	r := &run{Options: o, plan: newPlan(o.Seed, o.Charges, newRunName())}
	r.chaos.struck = map[string]int{}
	if o.ConsoleURL != "" {
		o.say("console: %s", o.ConsoleURL)
	}
	o.say("payonce demo: %d charges, every request sent three times, seed %d", o.Charges, o.Seed)
	plenty, few := 100*o.Charges, max(1, o.Charges/25)
	stock := []string{fmt.Sprintf("tshirt=%d", plenty), fmt.Sprintf("mug=%d", plenty), fmt.Sprintf("poster=%d", few)}
	if r.stage, err = openStage(ctx, o, stock...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	var showing sync.WaitGroup
	defer showing.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer r.Lab.close()
	defer cancel()
	if r.Show != nil {
		showing.Go(func() {
			if err := r.Show(ctx, r.world.Service); err != nil && ctx.Err() == nil {
				r.say("the console shows nothing: %v", err)
			}
		})
	}
	return r.play(ctx)
}

// play lets charges flow, judges and, with Keep, waits for the end of ctx.
func (r *run) play(ctx context.Context) (err error) {
	began := r.Now()
	if r.before, err = r.sandbox.Books(ctx); err != nil {
		return err
	}
	r.Lab.open(ctx, r)
	if err := r.flow(ctx); err != nil {
		return err
	}
	found, err := r.audit(ctx, began)
	if err != nil {
		return err
	}
	if r.Keep {
		r.say("%s\n%s", r.introduction(), r.Lab.names())
		go r.Lab.obey(ctx, r.Options) // a read from a terminal ends with the program
		<-ctx.Done()
	}
	if !found.OK {
		return fmt.Errorf("%w: %s", ErrBroken, found.Violated())
	}
	return nil
}

// flow is the part in which things break. When it returns, the provider has none of the demo's
// faults any more, so that the audit can ask it.
func (r *run) flow(ctx context.Context) error {
	flowing, cancel := context.WithTimeout(ctx, r.plan.length+trafficTimeout)
	defer cancel()
	striking, flowing := errgroup.WithContext(flowing) // else the charges wait for a program that does not come back
	striking.Go(func() error { return r.strikeAll(flowing) })
	var reporting sync.WaitGroup
	reporting.Go(func() {
		for more := true; more; {
			more = harness.Wait(flowing, 3*time.Second) == nil
			r.say("%d of %d charges ended; %s", r.ended.Load(), len(r.plan.charges), r.broken())
		}
	})
	r.merchant.run(flowing, r.plan.charges)
	err := striking.Wait()
	reporting.Wait()
	r.Lab.acting.Lock()
	defer r.Lab.acting.Unlock()
	r.sent = append(r.sent, r.plan.charges...)
	// The sandbox may be another's, and continues without the demo.
	clearing, cancel := closing(ctx)
	defer cancel()
	return errors.Join(err, ctx.Err(), r.setFaults(clearing, harness.Faults{}))
}

// audit observes what is left when nothing is left to do, reports and returns the service's
// own audit with what was observed from outside. No action of the lab is in flight meanwhile.
func (r *run) audit(ctx context.Context, began time.Time) (a harness.Audit, err error) {
	r.Lab.acting.Lock()
	defer r.Lab.acting.Unlock()
	if r.events, err = r.countEvents(ctx); err != nil {
		return a, err
	}
	if r.repeated, err = r.sandbox.RepeatWebhooks(ctx, 2); err != nil {
		return a, err
	}
	later, err := r.countEvents(ctx)
	if err != nil {
		return a, err
	}
	r.added = later - r.events
	if r.books, err = r.sandbox.Books(ctx); err != nil {
		return a, err
	}
	r.chaos.losses, r.chaos.programs = r.world.Losses(), len(r.world.Processes())
	r.took = r.Now().Sub(began)
	r.say("auditing")
	if a, err = r.world.Audit(ctx); err != nil {
		return a, fmt.Errorf("audit: %w", err)
	}
	a = a.With(r.verdict(r.killed)...)
	if err := r.report(a); err != nil {
		return a, fmt.Errorf("print the report: %w", err)
	}
	return a, nil
}

// countEvents counts the events of the demo's charges when nothing is left to do, or the time for
// that is over: the audit then says what is left.
func (r *run) countEvents(ctx context.Context) (n int, err error) {
	const count = `select count(*) from ledger_events where stream_id = any($1)`
	var ids []string
	for _, c := range r.sent {
		ids = append(ids, c.ID)
	}
	waiting, cancel := context.WithTimeout(ctx, trafficTimeout)
	defer cancel()
	if err := r.quiet(waiting, true); err != nil && waiting.Err() == nil {
		return 0, fmt.Errorf("wait until nothing is left to do: %w", err)
	}
	return n, r.db.QueryRow(ctx, count, ids).Scan(&n)
}
