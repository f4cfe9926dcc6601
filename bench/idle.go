package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// idlePayonce measures how long a charge takes when there is nothing else to do.
func idlePayonce(ctx context.Context, s *stage, set setting) (Sample, error) {
	w, err := s.open(ctx, set)
	if err != nil {
		return Sample{}, err
	}
	defer w.close()
	sample, err := w.judged(ctx, true, func() (window, error) {
		return w.pairing(ctx, func(p pair) (window, error) { return w.oneByOne(ctx, p.api.URL(), p.use) })
	})
	if err != nil {
		return Sample{}, err
	}
	return w.fromLedger(ctx, sample)
}

// idleRiver is the same, carried by River.
func idleRiver(ctx context.Context, s *stage, set setting) (Sample, error) {
	w, err := s.open(ctx, set)
	if err != nil {
		return Sample{}, err
	}
	defer w.close()
	sample, err := w.judged(ctx, false, func() (window, error) {
		return w.shopping(ctx, 64, func(url string, pid int) (window, error) {
			return w.oneByOne(ctx, url, users(w.server.postmaster, pid))
		})
	})
	if err != nil {
		return Sample{}, err
	}
	return w.fromLedger(ctx, sample)
}

// oneByOne sends a charge, waits until the merchant was told of it, and then a
// little, so that polls meet it at any point of their interval.
func (w *world) oneByOne(ctx context.Context, url string, use func() usage) (seen window, err error) {
	l := w.sending([]string{url}, use)
	before, began := use(), time.Now()
	for n := range w.sizes.idle {
		id := l.next()
		if !w.flow.begin(ctx, id) {
			return seen, context.Cause(ctx)
		}
		if err := l.send(ctx, id); err != nil {
			return seen, err
		}
		if err := w.flow.await(ctx); err != nil {
			return seen, err
		}
		if err := pause(ctx, time.Duration(10+n%23)*time.Millisecond); err != nil {
			return seen, err
		}
	}
	return window{Done: w.flow.ended, Seconds: time.Since(began).Seconds(), Used: use().minus(before)}, nil
}

const selectTerminal = `
select percentile_cont(0.5)  within group (order by took),
       percentile_cont(0.99) within group (order by took)
  from (select 1000 * extract(epoch from ended.recorded_at - begun.recorded_at) as took
          from ledger_events begun
          join ledger_events ended
            on ended.stream_id = begun.stream_id
           and ended.type = 'charge.succeeded.v1'
         where begun.type = 'charge.requested.v1') as charges`

// fromLedger takes the latencies from the ledger: from a charge's first event to
// its outcome, by the database's clock.
func (w *world) fromLedger(ctx context.Context, s Sample) (Sample, error) {
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return s, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := conn.QueryRow(ctx, selectTerminal).Scan(&s.P50, &s.P99); err != nil {
		return s, fmt.Errorf("read the latencies: %w", err)
	}
	return s, nil
}
