// Package demo plays the whole service under faults and then asks whether every
// promise held: the real programs as child processes, charges, refunds and
// cancellations whose requests are sent three times each, a provider that loses
// answers and sends its webhooks again, SIGKILLs of workers and of an api, and
// an immediate restart of the database, all while charges flow.
//
// It sees the service as a stranger does: through HTTP, through the books that
// the sandbox keeps, and through `payonce audit`. It imports none of the
// product's packages, so it cannot share a mistake with them.
//
// It promises exit without leftovers: no process, no database and no folder
// remains, except a folder or, on a server of the user's own, databases after a
// SIGKILL of the demo itself; the next demo removes the folder. It does not show
// power loss, a broken disk, or a provider that breaks its own contract.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrBroken says that a promise did not hold.
var ErrBroken = errors.New("a promise was broken")

// Options are how the demo is played.
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
	// Running, where set, plays on services that run already.
	Running *Running

	Stdout io.Writer
	Stderr io.Writer
	Now    func() time.Time
}

// stage is what the demo is played on: its own processes, or services that run
// already.
type stage interface {
	// house says where everything is.
	house() house
	// killWorker kills one of the workers and brings it back.
	killWorker(ctx context.Context, which int) error
	// killAPI kills one of the apis and brings it back.
	killAPI(ctx context.Context, which int) error
	// restartDatabase restarts the server without a shutdown. It returns
	// errNotRun where that is not the demo's to do.
	restartDatabase(ctx context.Context) error
	// audit runs `payonce audit --json` and returns what it printed.
	audit(ctx context.Context) ([]byte, error)
	// losses are the programs that ended without being told to, with the ends of
	// their logs, and the number of all programs; 0 if they are not the demo's.
	losses() (lost []string, all int)
	// introduce prints what a visitor needs to look around.
	introduce(screen *screen)
	// close stops everything and removes what was made.
	close(ctx context.Context) error
}

// errNotRun says that a part of the demo cannot be played on this stage.
var errNotRun = errors.New("not run")

// errStopped says that the demo was told to end before its audit.
var errStopped = errors.New("stopped before the audit")

// house is where the service and its outside world answer.
type house struct {
	apis    []string
	sandbox string
	apiKey  string
	// blow is what a kill is on this stage.
	blow string
}

// closingPatience bounds the end of the demo: a program has 10 s to drain.
const closingPatience = 20 * time.Second

// Run plays the demo. It returns nil if every promise held and the faults
// really happened, and ErrBroken if not.
func Run(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return err
	}
	err := o.play(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: %w", errStopped, err)
	}
	return err
}

func (o Options) play(ctx context.Context) (err error) {
	if o.Seed == 0 {
		o.Seed = drawSeed()
	}
	screen := newScreen(o)
	plan := newPlan(o.Seed, o.Charges, newRunName())
	if o.Running != nil {
		plan.Stock = nil // somebody else has seeded it, and earlier runs have sold of it
	}
	screen.say("payonce demo: %d charges, every request sent three times, seed %d", o.Charges, o.Seed)

	stage, err := open(ctx, o, plan, screen)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closingPatience)
		defer cancel()
		err = errors.Join(err, stage.close(ctx))
	}()

	evidence, err := play(ctx, stage, plan, screen)
	if err != nil {
		return err
	}
	screen.say("auditing")
	audit, err := examine(ctx, stage, evidence)
	if err != nil {
		return err
	}
	if err := screen.report(evidence, audit); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	if o.Keep {
		stage.introduce(screen)
		<-ctx.Done()
	}
	if !audit.OK {
		return fmt.Errorf("%w: %s", ErrBroken, audit.violated())
	}
	return nil
}

func (o Options) check() error {
	switch {
	case o.Charges < 1:
		return fmt.Errorf("--charges is %d: it must be at least 1", o.Charges)
	case o.Running != nil && (o.Keep || o.Database != ""):
		return errors.New("--running plays on services that run already: leave out --keep and --database")
	}
	return nil
}

func open(ctx context.Context, o Options, plan Plan, screen *screen) (stage, error) {
	if o.Running != nil {
		return openRunning(ctx, *o.Running)
	}
	return openOwn(ctx, o, plan, screen)
}

// evidence is what the demo saw, which the verdict is made of.
type evidence struct {
	plan    Plan
	records []record
	listed  []json.RawMessage // the list of charges, paged through in the end
	before  books             // of the sandbox, from before the first charge
	books   books
	// repeated are the provider's webhooks that were sent again in the end.
	repeated repeated
	tally    *tally
	strikes  strikes
	losses   []string
	// programs is the number of those that could have been lost.
	programs int
	took     time.Duration
}

// play sends the charges and strikes while they flow. It ends when every charge
// has, or its patience.
func play(ctx context.Context, stage stage, plan Plan, screen *screen) (evidence, error) {
	house := stage.house()
	sandbox := sandboxClient{url: house.sandbox}
	seen := evidence{plan: plan, tally: &tally{}}
	began := screen.now()
	var err error
	if seen.before, err = sandbox.books(ctx); err != nil {
		return seen, err
	}
	traffic := newTraffic(house, seen.tally)
	if err := seen.flow(ctx, stage, traffic, sandbox, screen); err != nil {
		return seen, err
	}
	if seen.repeated, err = sandbox.repeatWebhooks(ctx, repetitions); err != nil {
		return seen, err
	}
	traffic.lookAgain(ctx, seen.records)
	seen.listed = traffic.list(ctx, seen.records)
	if seen.books, err = sandbox.books(ctx); err != nil {
		return seen, err
	}
	seen.losses, seen.programs = stage.losses()
	seen.took = screen.now().Sub(began)
	return seen, nil
}

// repetitions is how often the provider's webhooks are sent again in the end.
const repetitions = 2

// flow is the part of the play in which things break. When it returns, the
// provider is sound again, so that the audit can ask it.
func (seen *evidence) flow(ctx context.Context, stage stage, traffic *traffic, sandbox sandboxClient, screen *screen) error {
	seen.tally.note(strikes{blow: stage.house().blow})
	progress := screen.progress(seen.tally, seen.plan)
	defer progress.close()
	playing, cancel := context.WithTimeout(ctx, seen.plan.Length+patience)
	defer cancel()

	struck := make(chan error, 1)
	go func() {
		var err error
		seen.strikes, err = strike(playing, stage, sandbox, seen.plan, seen.tally, screen.now)
		if err != nil {
			cancel() // the charges would wait for what does not come back
		}
		struck <- err
	}()
	seen.records = traffic.carryAll(playing, seen.plan)
	err := <-struck
	if ended := ctx.Err(); ended != nil {
		// The sandbox may be somebody else's, and goes on without us.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		return errors.Join(ended, sandbox.clearFaults(ctx))
	}
	return errors.Join(err, sandbox.clearFaults(ctx))
}

// patience is how long the demo waits, after the last charge was sent, for the
// last one to end.
const patience = 90 * time.Second
