package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// The tables are filled with copies of one charge that the programs have carried
// to its end: legal rows by construction, whatever the programs write. Each copy
// has an id, an order, a key, an article, a payment intent, events' ids and a time
// of its own.
//
// What is there is what retention leaves of six days: every key and every message
// of the inbox, and of the outbox the last day. Nothing of it expires while it is
// measured.
const (
	filledFor = 6 * 24 * time.Hour
	fillChunk = 10_000 // charges, in the commits of one turn
)

// original is the charge that is copied.
type original struct {
	Charge, Order, Intent, Article, Requested, Outcome, At string
	Version                                                int
}

const selectOriginal = `
select first.stream_id              as charge,
       first.data ->> 'order_id'    as order,
       started.data ->> 'payment_intent' as intent,
       first.data #>> '{items,0,sku}' as article,
       first.event_id::text         as requested,
       outcome.event_id::text       as outcome,
       l.view ->> 'created_at'      as at,
       outcome.version              as version
  from ledger_events first
  join ledger_events started
    on started.stream_id = first.stream_id
   and started.type = 'payment.captured.v1'
  join ledger_events outcome
    on outcome.stream_id = first.stream_id
   and outcome.type = 'charge.succeeded.v1'
  join charge_list l
    on l.charge_id = first.stream_id
   and l.version = $1
 where first.version = 1`

// statement writes a copying statement: in braces stand texts of the original, in
// which what is its own becomes the copy's.
func (o original) statement(sql string) string {
	own := []struct{ from, to string }{
		{o.Charge, "c.id"},
		{o.Order, "c.order_id"},
		{`"` + o.Intent + `"`, `'"' || c.intent || '"'`},
		{o.Article, "c.sku"},
		{o.Requested, "c.requested::text"},
		{o.Outcome, "c.outcome::text"},
		{o.At, "c.at_text"},
	}
	var written strings.Builder
	fmt.Fprintf(&written, copies, articles, o.Version)
	for {
		before, rest, found := strings.Cut(sql, "{")
		written.WriteString(before)
		if !found {
			return written.String()
		}
		text, after, _ := strings.Cut(rest, "}")
		sql = after
		for _, part := range own {
			text = fmt.Sprintf("replace(%s, %s, %s)", text, quoted(part.from), part.to)
		}
		written.WriteString(text)
	}
}

func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// fill lets the programs carry one charge, and copies it until there are so many.
// The copies were never at the provider or the shop.
func (w *world) fill(ctx context.Context, charges int) error {
	if _, err := w.pairing(ctx, func(p pair) (window, error) { return window{}, w.first(ctx, p) }); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, selectOriginal, eventsOfCharge)
	if err != nil {
		return fmt.Errorf("read the charge to copy: %w", err)
	}
	o, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[original])
	if err != nil {
		return fmt.Errorf("read the charge to copy: %w", err)
	}
	if _, err := conn.Exec(ctx, originals); err != nil {
		return fmt.Errorf("fill the tables: %w", err)
	}
	if err := w.copyAround(ctx, conn, o, charges-1); err != nil {
		return fmt.Errorf("fill the tables: %w", err)
	}
	b := &pgx.Batch{}
	b.Queue(sumBalances, charges)
	b.Queue(sumStock, charges-1, articles)
	b.Queue(foldedAll)
	b.Queue(passedAll)
	b.Queue(dropOriginals)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("fill the tables: %w", err)
	}
	w.filled = charges - 1
	return tidy(ctx, conn)
}

// first sends a charge, and waits until it has left everything that it does.
func (w *world) first(ctx context.Context, p pair) error {
	l := w.sending(p.urls, p.use)
	id := l.next()
	w.flow.begin(ctx, id)
	if err := l.send(ctx, id); err != nil {
		return err
	}
	if err := w.flow.await(ctx); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, w.database)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		var left bool
		if err := conn.QueryRow(ctx, selectUnfinished, eventsOfCharge).Scan(&left); err != nil {
			return fmt.Errorf("wait for the first charge: %w", err)
		}
		if !left {
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("wait for the first charge: %w", err)
		}
	}
}

const selectUnfinished = `
select not exists (
         select
           from charge_list
          where version = $1)
    or exists (
         select
           from inbox
          where status <> 'done')`

// copyAround makes a checkpoint when most copies are there. A page that is touched
// the first time after one goes to the log whole, and the ids of events touch all
// pages of their index: the copies that follow do that, and what is measured later
// finds the tables as they are between two checkpoints, however large they are.
func (w *world) copyAround(ctx context.Context, conn *pgx.Conn, o original, charges int) error {
	most, now := charges*4/5, time.Now()
	if err := w.copy(ctx, o, span{1, most, charges, now}); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "checkpoint"); err != nil {
		return fmt.Errorf("make a checkpoint: %w", err)
	}
	return w.copy(ctx, o, span{most + 1, charges, charges, now})
}

// span are some of the copies, by their numbers. The last of all has the time now.
type span struct {
	from, to, all int
	now           time.Time
}

// A copy's article is there as the original's is. The audit would find one that
// is not.
const passOverTriggers = `
set session_replication_role = replica`

// copy makes copies, chunk by chunk, as many at a time as there are processors.
func (w *world) copy(ctx context.Context, o original, s span) error {
	sent := []string{
		o.statement(copyEvents), o.statement(copyPostings), o.statement(copyKey), o.statement(copyOutbox),
		o.statement(copyReservation), o.statement(copyListed),
	}
	received := o.statement(copyInbox)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(runtime.NumCPU(), 4))
	for from := s.from; from <= s.to; from += fillChunk {
		g.Go(func() error {
			conn, err := pgx.Connect(ctx, w.database)
			if err != nil {
				return fmt.Errorf("connect: %w", err)
			}
			defer conn.Close(context.WithoutCancel(ctx))
			if _, err := conn.Exec(ctx, passOverTriggers); err != nil {
				return err
			}
			args := []any{from, min(from+fillChunk-1, s.to), s.all, filledFor, s.now}
			b := &pgx.Batch{} // one transaction
			for _, sql := range sent {
				b.Queue(sql, args...)
			}
			if err := conn.SendBatch(ctx, b).Close(); err != nil {
				return err
			}
			_, err = conn.Exec(ctx, received, args...) // in a later one
			return err
		})
	}
	return g.Wait()
}

// tidy leaves the tables as autovacuum would have left them in the days that they
// took to grow. It goes on by itself, and nobody helps it from here on.
func tidy(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "vacuum (analyze)"); err != nil {
		return fmt.Errorf("vacuum: %w", err)
	}
	return nil
}
