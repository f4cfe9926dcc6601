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
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// ErrBroken says that a promise did not hold.
var ErrBroken = errors.New("a promise was broken")

// Demo is one demo, with the crash lab and the guard lab. Its maker sets the exported fields and
// calls Run or Break once. Several goroutines may call Do, before and after Run too.
type Demo struct {
	// Charges is how many charges are made, at least 1.
	Charges int
	// Seed chooses the charges, the faults and the kills; 0 draws one.
	Seed uint64
	// Keep leaves everything running after the audit, until ctx ends.
	Keep bool
	// Database is the URL of a server to use instead of one of the demo's own.
	Database string
	// Running, if set, are services that run already, to use in place of Keep and Database.
	Running *Running

	// Say takes each line that says how far the demo has come.
	Say func(line string)
	// Report takes the audit, with what was observed from outside.
	Report func(harness.Audit)
	// Show, if set, shows the service of a database until ctx ends. It has a goroutine of its own.
	Show func(ctx context.Context, database string)
	Now  func() time.Time

	*harness.Client // of the merchant

	evidence
	ended    atomic.Int64 // charges
	inFlight atomic.Int64 // requests that were accepted, and are not seen to have ended

	// What the demo runs on: two apis, two workers and a sandbox of its own with a database, or
	// services that run already.
	world   harness.World // without programs, if they run already
	sandbox harness.Sandbox
	db      *pgxpool.Pool                 // the service's database
	server  *local.Server                 // nil if it is another's
	killed  string                        // what a kill is here
	lab     bool                          // for the guard lab: its server needs no disk
	ends    []func(context.Context) error // which close calls, the last one first

	acting sync.Mutex      // one action at a time
	kept   context.Context // of the actions, while everything stays up; nil before
}

func (d *Demo) say(format string, args ...any) { d.Say(fmt.Sprintf(format, args...)) }

// trafficTimeout bounds the wait for the last charge, after it was sent.
const trafficTimeout = 90 * time.Second

// closing bounds what has to be done also when ctx has ended: a program has 10 s to drain.
func closing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
}

// Run runs the demo. It returns nil if every promise held and the faults really
// happened, and ErrBroken if not.
func (d *Demo) Run(ctx context.Context) (err error) {
	if d.Charges < 1 {
		return fmt.Errorf("--charges is %d: it must be at least 1", d.Charges)
	}
	if d.Seed == 0 {
		d.Seed = newSeed()
	}
	d.say("payonce demo: %d charges, every request sent three times, seed %d", d.Charges, d.Seed)
	d.sent = newCharges(d.Seed, d.Charges, newRunName())
	defer func() {
		if errors.Is(err, context.Canceled) {
			err = fmt.Errorf("stopped before the audit: %w", err)
		}
		err = errors.Join(err, d.close(ctx))
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before close: what is shown reads the database
	plenty, few := 100*d.Charges, max(1, d.Charges/25)
	if err := d.open(ctx, fmt.Sprintf("tshirt=%d", plenty), fmt.Sprintf("mug=%d", plenty), fmt.Sprintf("poster=%d", few)); err != nil {
		return err
	}
	d.noRestart = d.server == nil
	before, err := d.sandbox.Books(ctx)
	if err != nil {
		return err
	}
	if d.Show != nil {
		go d.Show(ctx, d.world.Service)
	}
	if err := d.flow(ctx); err != nil {
		return err
	}
	found, err := d.audit(ctx, before)
	if err != nil {
		return err
	}
	if d.Keep {
		d.keep(ctx, d.introduction())
	}
	if !found.OK {
		return fmt.Errorf("%w: %s", ErrBroken, found.Violated())
	}
	return nil
}

// newSeed is small enough to be typed.
func newSeed() uint64 { return 1 + rand.Uint64N(1<<32) } //nolint:gosec // a seed is no secret

// flow is the part in which things break. When it returns, the provider has none of the demo's
// faults any more, so that the audit can ask it.
func (d *Demo) flow(ctx context.Context) error {
	const shortest, perSecond = 15 * time.Second, 20 // few charges are spread over the time that faults take
	charges := d.sent
	length := max(shortest, time.Duration(len(charges))*time.Second/perSecond)
	flowing, cancel := context.WithTimeout(ctx, length+trafficTimeout)
	defer cancel()
	all, flowing := errgroup.WithContext(flowing) // else the charges wait for a program that does not come back
	all.Go(func() error { return d.strikeAll(flowing, length) })
	all.Go(func() error { d.run(flowing, charges, length/time.Duration(len(charges))); return nil })
	progress := func() { d.say("%d of %d charges ended; %s", d.ended.Load(), len(charges), d.broken()) }
	telling, end := context.WithCancel(ctx)
	go func() {
		for harness.Wait(telling, 3*time.Second) == nil {
			progress()
		}
	}()
	err := all.Wait()
	end()
	progress()
	clearing, cancel := closing(ctx) // the sandbox may be another's, and continues without the demo
	defer cancel()
	return errors.Join(err, ctx.Err(), d.sandbox.SetFaults(clearing, harness.Faults{}))
}

// audit observes what is left when nothing is left to do, reports and returns the service's
// own audit with what was observed from outside since an earlier observation.
func (d *Demo) audit(ctx context.Context, before harness.Books) (a harness.Audit, err error) {
	if d.events, err = d.countEvents(ctx); err != nil {
		return a, err
	}
	if d.repeated, err = d.sandbox.RepeatWebhooks(ctx, 2); err != nil {
		return a, err
	}
	if d.eventsAgain, err = d.countEvents(ctx); err != nil {
		return a, err
	}
	now, err := d.sandbox.Books(ctx)
	if err != nil {
		return a, err
	}
	d.books, d.losses = since(before, now), d.world.Losses()
	d.say("auditing")
	if a, err = d.world.Audit(ctx); err != nil {
		return a, fmt.Errorf("audit: %w", err)
	}
	a = a.With(d.verdict()...)
	d.say("%s", d.summary())
	d.Report(a)
	return a, nil
}

// countEvents counts the events of the demo's charges when nothing is left to do, or the time for that
// is over: the audit then says what is left.
func (d *Demo) countEvents(ctx context.Context) (n int, err error) {
	waiting, cancel := context.WithTimeout(ctx, trafficTimeout)
	defer cancel()
	if err := d.quiet(waiting, true); err != nil && waiting.Err() == nil {
		return 0, fmt.Errorf("wait until nothing is left to do: %w", err)
	}
	var ids []string
	for _, c := range d.sent {
		ids = append(ids, c.ID)
	}
	return n, d.db.QueryRow(ctx, `select count(*) from ledger_events where stream_id = any($1)`, ids).Scan(&n)
}
