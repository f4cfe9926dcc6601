package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// River as its users would run it, with the settings that were fastest here. It
// fetches again after 2 ms instead of 100, polls every 5 ms instead of being notified
// by NOTIFY, which would hold a lock of the whole server through each accepting
// commit that sends one, and completes jobs in batches, which is its default.
const (
	riverCooldown   = 2 * time.Millisecond
	peerPoll        = 5 * time.Millisecond // of the other peers too
	peerConnections = 40
)

// workJob does one charge of the engine's work.
type workJob struct {
	ID string `json:"id"`
}

func (workJob) Kind() string { return "work" }

type workWorker struct {
	river.WorkerDefaults[workJob]

	work   work
	commit func(context.Context, *pgx.Batch) error
	loop   *loop
}

func (w *workWorker) Work(ctx context.Context, job *river.Job[workJob]) error {
	if err := w.work.do(ctx, job.Args.ID, w.commit, nil); err != nil {
		return err
	}
	w.loop.end(job.Args.ID)
	return nil
}

// engineByRiver accepts a charge and its job in one transaction, as River's
// documents recommend.
func engineByRiver(ctx context.Context, t task) (w window, err error) {
	pool, err := openPool(ctx, t.Database, peerConnections)
	if err != nil {
		return w, err
	}
	defer pool.Close()
	l := newLoop(t.InFlight)
	workers := river.NewWorkers()
	river.AddWorker(workers, &workWorker{work: newWork(t.External, t.Workers), commit: committer(pool), loop: l})
	client, err := startRiver(ctx, pool, workers, t.Workers)
	if err != nil {
		return w, err
	}
	w, err = pump(ctx, t, l, func(ctx context.Context, id string) error {
		b := &pgx.Batch{}
		accept(b, id, time.Now())
		return withJob(ctx, pool, client, b, workJob{ID: id})
	})
	return w, errors.Join(err, client.Stop(context.WithoutCancel(ctx)))
}

func openPool(ctx context.Context, url string, connections int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("open a pool: %w", err)
	}
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open a pool: %w", err)
	}
	return pool, nil
}

// startRiver makes River's tables and starts it.
func startRiver(ctx context.Context, pool *pgxpool.Pool, workers *river.Workers, count int) (*river.Client[pgx.Tx], error) {
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		return nil, fmt.Errorf("make River's tables: %w", err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, fmt.Errorf("make River's tables: %w", err)
	}
	client, err := river.NewClient(driver, &river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: count}},
		Workers:           workers,
		FetchCooldown:     riverCooldown,
		FetchPollInterval: peerPoll,
		PollOnly:          true,
		Logger:            quiet(),
	})
	if err != nil {
		return nil, fmt.Errorf("make River's client: %w", err)
	}
	if err := client.Start(context.WithoutCancel(ctx)); err != nil { // Stop lets it finish what it has begun
		return nil, fmt.Errorf("start River: %w", err)
	}
	return client, nil
}

// withJob commits a batch and a job together. For one job this is faster than
// InsertManyFastTx, whose copy takes more round trips.
func withJob(ctx context.Context, pool *pgxpool.Pool, client *river.Client[pgx.Tx], b *pgx.Batch, job river.JobArgs) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		_, err := client.InsertTx(ctx, tx, job, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("commit with a job: %w", err)
	}
	return nil
}
