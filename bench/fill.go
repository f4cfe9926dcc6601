package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

//go:embed fill.sql
var procedures string

const fillChunk = 10_000 // charges in one transaction

// Triggers check what is true of a copy as it is of the original.
const copying = "set timezone = 'UTC'; set session_replication_role = replica"

// fill lets the programs process one charge, and copies it until there are so many. The
// copies were never at the provider or a merchant.
func (d *deployment) fill(ctx context.Context, charges int) error {
	if err := execute(ctx, d.database, procedures); err != nil {
		return err
	}
	err := d.while(ctx, []string{"api", "worker"}, func(of *running) error {
		d.filled = 1
		id := newID()
		d.load.begin(ctx, id)
		if err := errors.Join(d.send(of, id), d.load.await(ctx)); err != nil {
			return err
		}
		within, cancel := context.WithTimeout(ctx, startPatience)
		defer cancel()
		return execute(within, d.database, "call fill_wait($1)", eventsOfCharge)
	})
	if err != nil {
		return err
	}
	d.copied = charges - 1
	now, most := time.Now(), d.copied*4/5
	for _, step := range []func() error{
		func() error { return execute(ctx, d.database, copying+"; call fill_begin()") },
		func() error { return d.copyCharges(ctx, 1, most, now) },
		// The first change of a page after a checkpoint writes the whole page to the WAL,
		// and the ids of events touch all pages of their index: the copies that follow do
		// that, and what is measured later finds the tables as they are between two
		// checkpoints, however large they are.
		func() error { return d.server.checkpoint(ctx) },
		func() error { return d.copyCharges(ctx, most+1, d.copied, now) },
		func() error { return execute(ctx, d.database, "call fill_end($1)", d.copied) },
		func() error { return execute(ctx, d.database, "vacuum (analyze)") }, // as autovacuum would have left the tables
	} {
		if err := step(); err != nil {
			return fmt.Errorf("fill the tables: %w", err)
		}
	}
	return nil
}

// copyCharges makes the copies with these numbers, chunk by chunk, as many at a time as
// there are processors.
func (d *deployment) copyCharges(ctx context.Context, from, to int, now time.Time) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(runtime.NumCPU(), 4))
	for ; from <= to; from += fillChunk {
		first, last := from, min(from+fillChunk-1, to)
		g.Go(func() error {
			return connected(ctx, d.database, func(conn *pgx.Conn) error {
				if _, err := conn.Exec(ctx, copying); err != nil {
					return err
				}
				_, err := conn.Exec(ctx, "call fill_copies($1, $2, $3, $4)", first, last, d.copied, now)
				return err
			})
		})
	}
	return g.Wait()
}
