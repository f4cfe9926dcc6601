package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
)

// The real programs are measured from the request to the merchant's webhook: while requests
// keep coming, or one charge at a time when there is nothing else to do. River processes the
// same charges as its jobs.
var (
	processCharges = job{start: startBoth, drive: drive, check: checkCharges}.measure
	idleCharges    = job{start: startBoth, drive: oneByOne, check: checkCharges}.measure
	processByRiver = job{start: startRiverService, drive: drive, check: countCharges}.measure
	idleByRiver    = job{start: startRiverService, drive: oneByOne, check: countCharges}.measure
)

// callsOfCharge are the calls of the provider that a charge needs, one after the other.
const callsOfCharge = 2

// ideal is the rate if only the provider took time, 0 where it takes none.
func ideal(set setting) float64 {
	if set.Latency == 0 {
		return 0
	}
	return float64(set.InFlight) / (callsOfCharge * set.Latency.Seconds())
}

// selectLatencies takes the latencies from the ledger: from a charge's first event to
// its outcome, by the database's clock.
const selectLatencies = `
select percentile_cont(0.5)  within group (order by took),
       percentile_cont(0.99) within group (order by took)
  from (select extract(epoch from ended.recorded_at - begun.recorded_at)::float8 as took
          from ledger_events begun
          join ledger_events ended
            on ended.stream_id = begun.stream_id
           and ended.type = 'charge.succeeded.v1'
         where begun.type = 'charge.requested.v1') as charges`

// oneByOne sends a charge, waits for its webhook, and then pauses for 10 to 32 ms, so
// that polls meet it at any point of their interval.
func oneByOne(ctx context.Context, d *deployment, of *running) (w window, err error) {
	l := d.load(of)
	before, began := of.use(), time.Now()
	for n := range d.sizes.idle {
		if err := d.send(ctx, l); err != nil {
			return w, err
		}
		if err := d.loop.await(ctx); err != nil {
			return w, err
		}
		if err := pause(ctx, time.Duration(10+n%23)*time.Millisecond); err != nil {
			return w, err
		}
	}
	w = window{Done: d.loop.ended, Seconds: time.Since(began).Seconds(), Used: of.use().minus(before)}
	var p50, p99 float64
	err = read(ctx, d.database, selectLatencies, nil, &p50, &p99)
	w.P50, w.P99 = time.Duration(p50*float64(time.Second)), time.Duration(p99*float64(time.Second))
	return w, err
}

// send sends one charge.
func (d *deployment) send(ctx context.Context, l load) error {
	id := l.next()
	if !d.loop.begin(ctx, id) {
		return context.Cause(ctx)
	}
	return l.send(ctx, id)
}

// slowestDrain is a rate, in charges a second, below which a backlog is given up.
const slowestDrain = 50

// processBacklog measures how fast a worker processes charges that were accepted before it
// started. Their processor time holds that of accepting them.
func processBacklog(ctx context.Context, b *bench, set setting) (Sample, error) {
	if set.Waiting == 0 {
		return processCharges(ctx, b, set)
	}
	set.InFlight = set.Waiting
	return job{start: startAPIs, drive: driveBacklog, check: checkCharges}.measure(ctx, b, set)
}

func driveBacklog(ctx context.Context, d *deployment, of *running) (w window, err error) {
	d.loop.patience = drainPatience + time.Duration(d.setting.Waiting/slowestDrain)*time.Second
	l, before := d.load(of), of.use()
	if err := onAllConnections(d.setting.Waiting, func(int) error { return d.send(ctx, l) }); err != nil {
		return w, err
	}
	accepted := of.use().minus(before)
	err = d.once(ctx, startWorker, func(worker *running) error {
		memory := residents(worker.worker)
		before, began := worker.use(), time.Now()
		if err := d.loop.await(ctx); err != nil {
			return err
		}
		used := worker.use().minus(before)
		w = window{Done: d.loop.ended, Seconds: time.Since(began).Seconds(), Used: usage{
			Programs: used.Programs + accepted.Programs, Database: used.Database + accepted.Database,
		}}
		d.drained = memory()
		return nil
	})
	return w, err
}

// auditable is how many charges are audited; more are counted.
const auditable = 20_000

// checkCharges audits every promise of payonce, and counts the charges. Of another
// commit's tables they are counted only.
func checkCharges(ctx context.Context, d *deployment) error {
	if d.setting.Base || d.before.charges+d.loop.ended > auditable {
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

const selectCharges = `
select (select count(*) from idempotency_keys),
       (select count(*) from ledger_events where type = 'charge.succeeded.v1'),
       (select count(*) from ledger_events where type = 'merchant.notified.v1'),
       (select count(*) from ledger_events),
       (select count(*) from ledger_postings),
       (select count(*) from reservations where status = 'sold'),
       (select sum(sold)::bigint from stock)`

// What a charge that succeeded has.
const (
	eventsOfCharge   = 6 // requested, reserved, started, captured, succeeded, notified
	postingsOfCharge = 4
)

// countCharges compares what the tables, the provider and the merchants have with what
// was sent.
func countCharges(ctx context.Context, d *deployment) error {
	var keys, succeeded, notified, events, postings, reserved, sold int
	if err := read(ctx, d.database, selectCharges, nil, &keys, &succeeded, &notified, &events, &postings, &reserved, &sold); err != nil {
		return err
	}
	captured, twice := d.external.captures.sum()
	webhooks, _ := d.external.webhooks.sum()
	sent := d.loop.ended
	stored := sent + d.copied
	for _, n := range []int{keys, succeeded, notified, events / eventsOfCharge, postings / postingsOfCharge, reserved, sold} {
		if n != stored || captured != sent || webhooks != sent || twice > 0 {
			return fmt.Errorf("%d charges sent and %d copied: %d keys, %d succeeded, %d notified, %d events, %d postings, %d reserved, %d sold; "+
				"the provider captured %d, %d of them twice; the merchants received %d webhooks",
				sent, d.copied, keys, succeeded, notified, events, postings, reserved, sold, captured, twice, webhooks)
		}
	}
	return nil
}
