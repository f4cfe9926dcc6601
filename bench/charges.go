package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/fleet"
)

// chargesByPayonce measures the real programs, from the request to the merchant's
// webhook, while requests keep coming.
func chargesByPayonce(ctx context.Context, s *stage, set setting) (Sample, error) {
	w, err := s.open(ctx, set)
	if err != nil {
		return Sample{}, err
	}
	defer w.close()
	return w.judged(ctx, true, func() (window, error) {
		return w.pairing(ctx, func(p pair) (window, error) {
			return w.flow.drive(ctx, w.sending(p.urls, p.use))
		})
	})
}

// pair is payonce's programs at work.
type pair struct {
	api, worker *fleet.Process // the first api, where there are several
	urls        []string       // of all
	use         func() usage
}

// pairing runs the programs while do does.
func (w *world) pairing(ctx context.Context, do func(pair) (window, error)) (seen window, err error) {
	programs, err := w.apis(ctx)
	defer func() { err = errors.Join(err, finish(ctx, programs...)) }()
	if err != nil {
		return seen, err
	}
	p := pair{api: programs[0], urls: urls(programs)}
	if p.worker, err = w.worker(ctx); err != nil {
		return seen, err
	}
	programs = append(programs, p.worker)
	p.use = users(w.server.postmaster, pids(programs)...)
	return do(p)
}

// chargesByRiver measures the same charges, carried by River.
func chargesByRiver(workers int) func(context.Context, *stage, setting) (Sample, error) {
	return func(ctx context.Context, s *stage, set setting) (Sample, error) {
		w, err := s.open(ctx, set)
		if err != nil {
			return Sample{}, err
		}
		defer w.close()
		return w.judged(ctx, false, func() (window, error) {
			return w.shopping(ctx, workers, func(url string, pid int) (window, error) {
				return w.flow.drive(ctx, w.sending([]string{url}, users(w.server.postmaster, pid)))
			})
		})
	}
}

// shopping runs the shop on River while do does.
func (w *world) shopping(ctx context.Context, workers int, do func(url string, pid int) (window, error)) (seen window, err error) {
	carrier, url, err := w.riverShop(ctx, workers)
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, carrier.end()) }()
	return do(url, carrier.command.Process.Pid)
}

// riverShop starts the process that accepts charges and carries them by River.
func (w *world) riverShop(ctx context.Context, workers int) (c *carrier, url string, err error) {
	c, err = startCarrier(ctx, order{By: "shop", Database: w.database, Outside: w.outside.url, Workers: workers})
	if err != nil {
		return nil, "", err
	}
	return c, url, c.read(&url)
}

// judged measures, and then compares what the tables, the provider and the shop
// have. Of payonce all promises are audited; River's tables have no outbox and
// inbox, so of it the charges are counted.
func (w *world) judged(ctx context.Context, audited bool, measure func() (window, error)) (Sample, error) {
	sample, err := counting(ctx, w.database, func() (window, error) {
		seen, err := measure()
		seen.Total = w.flow.ended
		return seen, errors.Join(err, w.flow.check())
	})
	if err != nil {
		return Sample{}, err
	}
	if err := w.tellStatements(ctx, w.database); err != nil {
		return Sample{}, err
	}
	if audited && !w.setting.Base { // of another commit's tables the charges are counted
		if err := w.audit(ctx); err != nil {
			return Sample{}, err
		}
	}
	return sample, w.checkCharges(ctx, w.flow.ended)
}

const countCharges = `
select (select count(*) from idempotency_keys),
       (select count(*) from ledger_events where type = 'charge.succeeded.v1'),
       (select count(*) from ledger_events where type = 'merchant.notified.v1'),
       (select count(*) from ledger_events),
       (select count(*) from ledger_postings),
       (select count(*) from reservations where status = 'sold'),
       (select sum(sold)::bigint from stock)`

// What a charge that went well has.
const (
	eventsOfCharge   = 6 // requested, reserved, started, captured, succeeded, notified
	postingsOfCharge = 4
)

func (w *world) checkCharges(ctx context.Context, charges int) error {
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var keys, succeeded, notified, events, postings, reserved, sold int
	err = conn.QueryRow(ctx, countCharges).Scan(&keys, &succeeded, &notified, &events, &postings, &reserved, &sold)
	if err != nil {
		return fmt.Errorf("count the charges: %w", err)
	}
	captured, twice := w.outside.captured.sum()
	told, _ := w.outside.told.sum()
	stored := charges + w.filled
	for _, n := range []int{keys, succeeded, notified, events / eventsOfCharge, postings / postingsOfCharge, reserved, sold} {
		if n != stored || captured != charges || told != charges || twice > 0 {
			return fmt.Errorf("%d charges and %d from before: %d keys, %d succeeded, %d notified, %d events, %d postings, %d reserved, %d sold; "+
				"the provider captured %d, %d of them twice; the shop was told of %d",
				charges, w.filled, keys, succeeded, notified, events, postings, reserved, sold, captured, twice, told)
		}
	}
	return nil
}

const auditPatience = 5 * time.Minute // of one statement over tables that may be large

func (w *world) audit(ctx context.Context) error {
	db, err := postgres.Open(ctx, w.database, postgres.Options{Application: "bench-audit", StatementTimeout: auditPatience})
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
			return fmt.Errorf("audit: %s: %d of %d violated, as %v", check.Name, check.Violated, check.Checked, check.Examples)
		}
	}
	return nil
}
