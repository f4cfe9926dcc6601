package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/retention"
)

// retentionSenders leave the machine some processor time, so that the p99 is not that
// of a queue alone.
const retentionSenders = 16

// Accepting beside rows that have expired: alone, or while the retention job deletes them.
var (
	besideExpired   = job{programs: []string{"api"}, prepare: expireStored, drive: driveAccepting, check: checkAccepted}
	besideRetention = job{programs: []string{"api"}, prepare: expireStored, drive: driveBesideRetention, check: checkAccepted}
)

// expireStored fills the tables, and makes everything in them old enough to be deleted.
// Rows that expire were last written before a checkpoint.
func expireStored(ctx context.Context, d *deployment) error {
	if d.setting.Stored == 0 {
		if err := d.fill(ctx, d.sizes.expired); err != nil {
			return err
		}
	}
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

// driveBesideRetention runs a worker's retention job beside accepting. No charge is
// processed.
func driveBesideRetention(ctx context.Context, d *deployment, of *running) (w window, err error) {
	db, err := postgres.Open(ctx, d.database, postgres.Options{Application: "bench-retention", Role: postgres.RoleWorker})
	if err != nil {
		return w, err
	}
	defer db.Close()
	working, stop := context.WithCancel(ctx)
	defer stop()
	job := &retention.Job{
		DB: db, Log: quiet(), InboxWindow: 7 * 24 * time.Hour, // as a worker's
	}
	var deleting sync.WaitGroup
	deleting.Go(func() { job.Run(working) })
	w, err = driveAccepting(ctx, d, of)
	stop()
	deleting.Wait()
	var kept int
	err = errors.Join(err, read(ctx, d.database, "select count(*) from idempotency_keys where body is not null and expires_at < now()", nil, &kept))
	if kept > d.copied {
		err = errors.Join(err, errors.New("nothing was deleted meanwhile"))
	}
	return w, err
}
