package main

import (
	"context"
	"fmt"
	"os"

	"github.com/google/uuid"
)

// engine measures one way to do the engine's work, in a process of its own.
func engine(by string, workers int) func(context.Context, *bench, setting) (Sample, error) {
	return func(ctx context.Context, b *bench, set setting) (Sample, error) {
		e, err := openExternal(0, nil)
		if err != nil {
			return Sample{}, err
		}
		defer e.close()
		return b.inChild(ctx, set, createWork, task{By: by, Workers: workers, External: e.url + "/post"},
			func(url string, total int) error { return checkWork(ctx, url, e, total) })
	}
}

// inChild measures a task in a database of its own, after it has executed setup there.
func (b *bench) inChild(ctx context.Context, set setting, setup string, t task, check func(url string, total int) error) (s Sample, err error) {
	url, err := b.database(ctx, set.Base)
	if err != nil {
		return s, err
	}
	if err := execute(ctx, url, setup); err != nil {
		return s, err
	}
	t.Database, t.Postmaster, t.Program = url, b.server.postmaster, b.tree(set.Base).bench
	t.InFlight, t.Warm, t.Measured = set.InFlight, b.sizes.warm, b.sizes.measured
	w, c, err := counted(ctx, url, func() (window, error) { return inChild(ctx, t) })
	if err != nil {
		return s, err
	}
	if err := b.printStatements(ctx, url); err != nil {
		return s, err
	}
	return newSample(w, c), check(url, w.Total)
}

// engineSenders accept in process, each one charge after the other.
const engineSenders = 64

// pump drives the engine's work: accept commits one charge, and the last step ends it
// in the loop.
func pump(ctx context.Context, t task, l *loop, accept func(ctx context.Context, id string) error) (window, error) {
	w, err := l.drive(ctx, load{
		senders: engineSenders, warm: t.Warm, measured: t.Measured,
		next: ids, send: accept, use: users(t.Postmaster, os.Getpid()),
	})
	if err != nil {
		return w, err
	}
	w.Total = l.ended
	return w, l.check()
}

// ids are in the order of time, as real ones are.
func ids() string { return uuid.Must(uuid.NewV7()).String() }

const countWork = `
select (select count(*) from idempotency_keys),
       (select count(*) from work_charges),
       (select count(*) from work_charges where step = 3),
       (select count(*) from work_steps)`

// checkWork compares what the tables hold and what was posted with what was accepted.
// Each POST is done once as long as nothing crashed.
func checkWork(ctx context.Context, url string, e *external, accepted int) error {
	var keys, charges, finished, done int
	if err := read(ctx, url, countWork, nil, &keys, &charges, &finished, &done); err != nil {
		return err
	}
	posted, repeated := e.posts.sum()
	if keys != accepted || charges != accepted || finished != accepted || done != steps*accepted || posted != accepted || repeated != 0 {
		return fmt.Errorf("%d accepted: %d keys, %d charges, %d finished, %d steps, %d posted, %d of them more than once",
			accepted, keys, charges, finished, done, posted, repeated)
	}
	return nil
}
