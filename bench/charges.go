package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
)

// The real programs are measured from the request to the merchant's webhook. River processes
// the same charges as its jobs.
var (
	processCharges = job{programs: []string{"api", "worker"}, drive: driveCharges, check: checkCharges}
	processByRiver = job{programs: []string{"river"}, drive: driveCharges, check: countCharges}
	processBacklog = job{programs: []string{"worker"}, prepare: acceptWaiting, drive: drain, check: checkCharges}
)

// driveCharges drives charges that end when their webhook arrives.
func driveCharges(ctx context.Context, d *deployment, of *running) (window, error) {
	return d.drive(ctx, of, func(id string) error { return d.send(of, id) })
}

// callsOfCharge are the calls of the provider that a charge needs, one after the other.
const callsOfCharge = 2

// ideal is the rate if only the provider took time, 0 where it takes none.
func ideal(set setting) float64 {
	if set.Latency == 0 {
		return 0
	}
	return 1000 * float64(set.InFlight) / (callsOfCharge * float64(set.Latency))
}

// slowestDrain is a rate, in charges a second, below which a backlog is given up.
const slowestDrain = 50

// acceptWaiting accepts charges while no worker runs.
func acceptWaiting(ctx context.Context, d *deployment) error {
	waiting := cmp.Or(d.setting.Waiting, d.sizes.waiting)
	ended := d.loop.ended
	d.loop = newLoop(waiting)
	d.loop.ended = ended
	d.loop.patience = drainPatience + time.Duration(waiting/slowestDrain)*time.Second
	return d.while(ctx, []string{"api"}, func(of *running) error {
		return onAllConnections(waiting, func(int) error { return d.begin(ctx, of) })
	})
}

// drain measures a worker until it has processed what waited for it.
func drain(ctx context.Context, d *deployment, of *running) (w window, err error) {
	before, began := of.use(), time.Now()
	err = d.loop.await(ctx)
	return window{Done: d.loop.ended - d.earlier, Seconds: time.Since(began).Seconds(), Used: of.use().minus(before)}, err
}

// begin sends one charge.
func (d *deployment) begin(ctx context.Context, of *running) error {
	id := newID()
	if !d.loop.begin(ctx, id) {
		return context.Cause(ctx)
	}
	return d.send(of, id)
}

// auditable is how many charges are audited; more are counted.
const auditable = 20_000

// checkCharges audits every promise of payonce, and counts the charges. Of another
// commit's tables they are counted only.
func checkCharges(ctx context.Context, d *deployment) error {
	if d.setting.Base || d.before[0]+d.loop.ended > auditable {
		return countCharges(ctx, d)
	}
	db, err := postgres.Open(ctx, d.database, postgres.Options{Application: "bench-audit", StatementTimeout: 5 * time.Minute})
	if err != nil {
		return err
	}
	defer db.Close()
	report, err := audit.Run(ctx, db)
	if err != nil {
		return err
	}
	for _, check := range report.Checks {
		if check.Violated > 0 {
			err = errors.Join(err, fmt.Errorf("audit: %s: %d of %d violated, as %v", check.Name, check.Violated, check.Checked, check.Examples))
		}
	}
	return errors.Join(err, countCharges(ctx, d))
}

// What a charge that succeeded has.
const (
	eventsOfCharge   = 6 // requested, reserved, started, captured, succeeded, notified
	postingsOfCharge = 4
)

// selectCharges counts the keys, what succeeded, what was notified, the events, the
// postings, the reservations and the articles of charges.
const selectCharges = `
select array[(select count(*) from idempotency_keys),
             (select count(*) from ledger_events where type = 'charge.succeeded.v1'),
             (select count(*) from ledger_events where type = 'merchant.notified.v1'),
             (select count(*) from ledger_events) / $1::int,
             (select count(*) from ledger_postings) / $2::int,
             (select count(*) from reservations where status = 'sold'),
             (select sum(sold)::bigint from stock)]`

// countCharges compares what the tables, the provider and the merchants have with what
// was sent.
func countCharges(ctx context.Context, d *deployment) error {
	var stored []int
	if err := read(ctx, d.database, selectCharges, []any{eventsOfCharge, postingsOfCharge}, &stored); err != nil {
		return err
	}
	captured, twice := d.external.sum(d.external.captures)
	webhooks, _ := d.external.sum(d.external.webhooks)
	sent := d.loop.ended
	if !slices.Equal(stored, slices.Repeat([]int{sent + d.copied}, len(stored))) || captured != sent || webhooks != sent || twice > 0 {
		return fmt.Errorf("%d charges sent and %d copied: keys, succeeded, notified, events, postings, reserved, sold %v; "+
			"the provider captured %d, %d of them twice; the merchants received %d webhooks",
			sent, d.copied, stored, captured, twice, webhooks)
	}
	return nil
}
