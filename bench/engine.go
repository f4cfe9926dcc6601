package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"
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

// carrier is one way to do the engine's work, in the process that is measured. Its
// database has the tables of the work; the end of its process closes what it opens.
type carrier struct {
	task

	loop       *loop
	work       work
	background *errgroup.Group // works until the context of start ends
}

// accepting commits a batch, which holds what all engines accept, with what makes the
// engine process the charge.
type accepting = func(ctx context.Context, b *pgx.Batch, id string) error

// carried drives an engine's work: accepting commits a charge, and its last step ends it
// in the loop.
func carried(start func(context.Context, *carrier) (accepting, error)) func(context.Context, task) (window, error) {
	return func(ctx context.Context, t task) (w window, err error) {
		c := &carrier{task: t, loop: newLoop(t.InFlight), work: newWork(t.External, max(t.InFlight, t.Workers))}
		running, stop := context.WithCancel(ctx)
		defer stop()
		c.background, running = errgroup.WithContext(running)
		commit, err := start(running, c)
		if err != nil {
			return w, err
		}
		w, err = c.loop.drive(ctx, t.Warm, t.Measured, users(t.Postmaster, os.Getpid()), func(ctx context.Context, id string) error {
			b := &pgx.Batch{}
			accept(b, id, time.Now())
			return commit(ctx, b, id)
		})
		stop()
		return w, errors.Join(err, c.background.Wait(), c.loop.check())
	}
}

// do does a charge's steps, and ends it.
func (c *carrier) do(ctx context.Context, id string, commit committing) error {
	err := c.work.do(ctx, id, commit)
	if err == nil {
		c.loop.end(id)
	}
	return err
}

func openPool(ctx context.Context, url string, connections int) (*pgxpool.Pool, error) {
	return pgxpool.New(ctx, fmt.Sprintf("%s&pool_max_conns=%d", url, connections))
}

// committer sends each batch as a transaction of its own in one round trip, which
// is the fastest that a plain pool can do.
func committer(pool *pgxpool.Pool) committing {
	return func(ctx context.Context, b *pgx.Batch, _ bool) error { return pool.SendBatch(ctx, b).Close() }
}

// newID returns ids in the order of time, as real ones are.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// countWork counts the keys, the charges, those that are finished, and the steps of each.
const countWork = `
select array[(select count(*) from idempotency_keys),
             (select count(*) from work_charges),
             (select count(*) from work_charges where step = $1::int),
             (select count(*) from work_steps) / $1]`

// checkWork compares what the tables hold and what was posted with what was accepted.
// Each POST is done once as long as nothing crashed.
func checkWork(ctx context.Context, url string, e *external, accepted int) error {
	var stored []int
	if err := read(ctx, url, countWork, []any{steps}, &stored); err != nil {
		return err
	}
	posted, repeated := e.sum(e.posts)
	if !slices.Equal(stored, slices.Repeat([]int{accepted}, len(stored))) || posted != accepted || repeated != 0 {
		return fmt.Errorf("%d accepted: keys, charges, finished, with all steps %v; %d posted, %d of them more than once", accepted, stored, posted, repeated)
	}
	return nil
}
