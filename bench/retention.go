package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/retention"
)

// How long a worker keeps messages by default.
const (
	outboxWindow = 24 * time.Hour
	inboxWindow  = 7 * 24 * time.Hour
)

// retentionSenders leave the machine some processor time, so that the p99 is not that
// of a queue alone.
const retentionSenders = 16

// besideExpired measures accepting beside rows that have expired: alone, or while the
// retention job deletes them. Then it waits until all of them are gone.
func besideExpired(deleting bool) func(context.Context, *bench, setting) (Sample, error) {
	return func(ctx context.Context, b *bench, set setting) (Sample, error) {
		set.InFlight = retentionSenders
		j := job{prepare: expireStored, start: startAPIs, drive: driveAccepting, check: func(ctx context.Context, d *deployment) error {
			return d.checkAccepted(ctx, d.loop.ended-d.earlier, !deleting)
		}}
		if deleting {
			j.start, j.drive = startRetention, driveUntilDeleted
		}
		return j.measure(ctx, b, set)
	}
}

// expireStored makes everything that the tables were filled with old enough to be
// deleted. Rows that expire were last written before a checkpoint.
func expireStored(ctx context.Context, d *deployment) error {
	for _, sql := range []string{
		"set session_replication_role = replica; update idempotency_keys set expires_at = now();" +
			"update outbox set created_at = created_at - interval '2 days'; update inbox set finished_at = finished_at - interval '8 days'",
		"vacuum (analyze)",
		"checkpoint",
	} {
		if err := execute(ctx, d.database, sql); err != nil {
			return err
		}
	}
	return nil
}

// startRetention starts an api, and the retention job in a process of its own.
func startRetention(ctx context.Context, d *deployment) (*running, error) {
	of, err := startAPIs(ctx, d)
	if err != nil {
		return nil, err
	}
	c, err := startChild(ctx, task{By: "janitor", Database: d.database})
	if err != nil {
		return nil, errors.Join(err, of.stop(ctx))
	}
	stop := of.stop
	of.stop = func(ctx context.Context) error { return errors.Join(c.end(), stop(ctx)) }
	of.worker = c.command.Process.Pid
	of.use = users(d.server.postmaster, append(of.pids, of.worker)...)
	return of, nil
}

func driveUntilDeleted(ctx context.Context, d *deployment, of *running) (window, error) {
	w, err := driveAccepting(ctx, d, of)
	within, cancel := context.WithTimeout(ctx, 10*drainPatience)
	defer cancel()
	for left := true; left && err == nil; {
		if err = pause(within, 100*time.Millisecond); err == nil {
			err = read(ctx, d.database, anyExpired, []any{outboxWindow, inboxWindow}, &left)
		}
	}
	return w, err
}

// deleteExpired is a worker's retention job. No charge is processed beside it.
func deleteExpired(ctx context.Context, t task, _ io.Writer) error {
	db, err := postgres.Open(ctx, t.Database, postgres.Options{Application: "bench-retention", Role: postgres.RoleWorker})
	if err != nil {
		return err
	}
	defer db.Close()
	(&retention.Job{
		DB: db, Log: quiet(), Name: "bench/" + strconv.Itoa(os.Getpid()),
		OutboxWindow: outboxWindow, InboxWindow: inboxWindow,
	}).Run(ctx)
	return nil
}

const anyExpired = `
select exists (
         select
           from idempotency_keys
          where body is not null
            and expires_at < now())
    or exists (
         select
           from outbox
          where created_at < now() - $1::interval)
    or exists (
         select
           from inbox
          where finished_at < now() - $2::interval)`
