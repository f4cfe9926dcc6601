package main

import (
	"context"
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

// riverCarrier accepts a charge and its job in one transaction, as River's documents
// recommend.
func riverCarrier(ctx context.Context, c *carrier) (accepting, error) {
	pool, err := openPool(ctx, c.Database, peerConnections)
	if err != nil {
		return nil, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[workJob]) error {
		return c.do(ctx, job.Args.ID, committer(pool))
	}))
	client, err := startRiver(ctx, pool, workers, c.Workers)
	if err != nil {
		return nil, err
	}
	c.background.Go(func() error {
		<-ctx.Done()
		return client.Stop(context.WithoutCancel(ctx))
	})
	return func(ctx context.Context, b *pgx.Batch, id string) error {
		return withJob(ctx, pool, client, b, workJob{ID: id})
	}, nil
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
