package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// atRest measures what a worker costs that has nothing to do. What is done is a second
// of it: so the table shows transactions, and milliseconds of processor time, of each
// second. Of PostgreSQL only the worker's sessions count.
func atRest(ctx context.Context, s *stage, set setting) (Sample, error) {
	w, err := s.open(ctx, set)
	if err != nil {
		return Sample{}, err
	}
	defer w.close()
	// Starting and stopping count in both.
	_, started, err := counted(ctx, w.database, func() (window, error) { return w.resting(ctx, 0) })
	if err != nil {
		return Sample{}, err
	}
	seen, all, err := counted(ctx, w.database, func() (window, error) { return w.resting(ctx, s.sizes.rest) })
	if err != nil {
		return Sample{}, err
	}
	return newSample(seen, all.minus(started)), nil
}

const selectSessions = `
select pid
  from pg_stat_activity
 where datname = current_database()
   and pid <> pg_backend_pid()`

// settled is how long a worker is left alone before it is at rest.
const settled = 3 * time.Second

// resting watches a worker for a while.
func (w *world) resting(ctx context.Context, d time.Duration) (seen window, err error) {
	worker, err := w.worker(ctx)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, finish(ctx, worker)) }()
	if err := pause(ctx, min(settled, 10*w.sizes.rest)); err != nil {
		return seen, err
	}
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return seen, fmt.Errorf("connect: %w", err)
	}
	rows, err := conn.Query(ctx, selectSessions)
	if err != nil {
		return seen, fmt.Errorf("read the worker's sessions: %w", err)
	}
	sessions, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return seen, fmt.Errorf("read the worker's sessions: %w", err)
	}
	program, server := users(0, worker.PID()), users(0, sessions...)
	use := func() usage { return usage{Programs: program().Programs, Database: server().Programs} }
	before, began := use(), time.Now()
	if err := pause(ctx, d); err != nil {
		return seen, err
	}
	seconds := max(1, int(d.Seconds()))
	return window{Done: seconds, Total: seconds, Seconds: time.Since(began).Seconds(), Used: use().minus(before)}, nil
}
