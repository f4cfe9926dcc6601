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

// The tables are filled with copies of one charge that the programs have processed:
// valid rows by construction, whatever the programs write. In each copy the charge's
// id, order, article, payment intent, event ids and times are its own.
//
// The tables hold what retention leaves of six days: every key and every message of
// the inbox, and of the outbox the last day. Nothing of it expires while it is
// measured.
const (
	filledFor = 6 * 24 * time.Hour
	fillChunk = 10_000 // charges in one transaction
)

// copied are the tables of which each charge has rows. The inbox comes in a later
// transaction, as its messages do.
var copied = []string{"ledger_events", "ledger_postings", "idempotency_keys", "outbox", "reservations", "charge_list", "inbox"}

// copies are the charges of one chunk. Ids begin with their time, as real ones do; the
// provider's are random.
const copies = `
with copies as materialized (
  select n,
         id,
         at,
         at - $6::timestamptz                                as later,
         md5('order' || id)::uuid::text                      as order_id,
         'pi_' || left(md5('intent' || id), 24)              as intent,
         'sku-' || lpad((n %% %d)::text, 3, '0')              as sku,
         to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as at_text
    from (select n,
                 at,
                 'ch_' || lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || left(md5(n::text), 20) as id
            from (select n,
                         date_trunc('second', $5::timestamptz - $4::interval * (1 - n / $3::float8)) as at
                    from generate_series($1::int, $2::int) as n) as times) as ids
)`

// original is the charge that is copied.
type original struct {
	charge, order, intent, article, createdAt string
	events                                    []string // ids, by version
	at                                        time.Time
}

const selectOriginal = `
select f.stream_id,
       f.data ->> 'order_id',
       (select data ->> 'payment_intent' from ledger_events where type = 'payment.captured.v1'),
       f.data #>> '{items,0,sku}',
       (select view ->> 'created_at' from charge_list),
       (select array_agg(event_id::text order by version) from ledger_events),
       f.occurred_at
  from ledger_events f
 where f.version = 1`

// own is an SQL expression: text, in which everything that belongs to the original is
// replaced by the copy's. In a column of bytes both are hexadecimal.
func (o original) own(text string, hexadecimal bool) string {
	replace := func(from, to string) {
		from = "'" + strings.ReplaceAll(from, "'", "''") + "'"
		if hexadecimal {
			from, to = "encode(convert_to("+from+", 'UTF8'), 'hex')", "encode(convert_to("+to+", 'UTF8'), 'hex')"
		}
		text = "replace(" + text + ", " + from + ", " + to + ")"
	}
	replace(o.charge, "c.id")
	replace(o.order, "c.order_id")
	replace(`"`+o.intent+`"`, `'"' || c.intent || '"'`)
	replace(o.article, "c.sku")
	replace(o.createdAt, "c.at_text")
	for version, id := range o.events {
		replace(id, fmt.Sprintf("md5('%d' || c.id)::uuid::text", version+1))
	}
	return text
}

const selectColumns = `
select quote_ident(attname),
       format_type(atttypid, null)
  from pg_attribute
 where attrelid = $1::text::regclass
   and attnum > 0
   and not attisdropped
   and attidentity = ''
   and attgenerated = ''
   and atttypid <> 'xid8'::regtype
 order by attnum`

// copying is the statement that copies the original's rows of a table.
func (o original) copying(ctx context.Context, conn *pgx.Conn, table string) (string, error) {
	var columns, values []string
	var name, kind string
	rows, _ := conn.Query(ctx, selectColumns, table) // ForEachRow returns its error
	_, err := pgx.ForEachRow(rows, []any{&name, &kind}, func() error {
		value := "o." + name
		switch kind {
		case "timestamp with time zone":
			value += " + c.later"
		case "bytea":
			value = "decode(" + o.own("encode("+value+", 'hex')", true) + ", 'hex')"
		case "text", "json", "jsonb", "uuid":
			value = o.own(value+"::text", false) + "::" + kind
		}
		columns, values = append(columns, name), append(values, value)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("read the columns of %s: %w", table, err)
	}
	kept := ""
	if table == "outbox" {
		kept = " where c.at > now() - interval '23 hours'"
	}
	return fmt.Sprintf("insert into %s (%s) "+copies+" select %s from copies c cross join original_%[1]s o%[5]s order by c.n, o.number",
		table, strings.Join(columns, ", "), articles, strings.Join(values, ", "), kept), nil
}

// fill lets the programs process one charge, and copies it until there are so many. The
// copies were never at the provider or a merchant.
func (d *deployment) fill(ctx context.Context, charges int) error {
	if err := d.once(ctx, startBoth, func(of *running) error { return d.first(ctx, of) }); err != nil {
		return err
	}
	d.copied = charges - 1
	return connected(ctx, d.database, func(conn *pgx.Conn) error {
		if err := d.copy(ctx, conn); err != nil {
			return fmt.Errorf("fill the tables: %w", err)
		}
		return nil
	})
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

// first sends a charge, and waits until every row of it is written.
func (d *deployment) first(ctx context.Context, of *running) error {
	if err := d.send(ctx, d.load(of)); err != nil {
		return err
	}
	if err := d.loop.await(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for left := true; left; {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("wait for the first charge: %w", err)
		}
		if err := read(ctx, d.database, selectUnfinished, []any{eventsOfCharge}, &left); err != nil {
			return err
		}
	}
	return nil
}

// copy makes a checkpoint when most copies are there. The first change of a page after
// a checkpoint writes the whole page to the log, and the ids of events touch all pages
// of their index: the copies that follow do that, and what is measured later finds the
// tables as they are between two checkpoints, however large they are.
func (d *deployment) copy(ctx context.Context, conn *pgx.Conn) error {
	var o original
	err := conn.QueryRow(ctx, selectOriginal).Scan(&o.charge, &o.order, &o.intent, &o.article, &o.createdAt, &o.events, &o.at)
	if err != nil {
		return err
	}
	var statements, drop []string
	for _, table := range copied {
		// The original's rows are kept apart from the tables that grow.
		keep := fmt.Sprintf("create unlogged table original_%s as select row_number() over () as number, t.* from %[1]s t", table)
		if _, err := conn.Exec(ctx, keep); err != nil {
			return err
		}
		sql, err := o.copying(ctx, conn, table)
		if err != nil {
			return err
		}
		statements, drop = append(statements, sql), append(drop, "drop table original_"+table)
	}
	now, most := time.Now(), d.copied*4/5
	if err := d.copyRange(ctx, statements, 1, most, o.at, now); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "checkpoint"); err != nil {
		return err
	}
	if err := d.copyRange(ctx, statements, most+1, d.copied, o.at, now); err != nil {
		return err
	}
	b := &pgx.Batch{}
	b.Queue(sumBalances, d.copied+1)
	b.Queue(sumStock, d.copied, articles)
	for _, sql := range append(drop, foldedAll, receivedEverything) {
		b.Queue(sql)
	}
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "vacuum (analyze)") // as autovacuum would have left the tables
	return err
}

// copyRange makes the copies with these numbers, chunk by chunk, as many at a time as
// there are processors.
func (d *deployment) copyRange(ctx context.Context, statements []string, from, to int, at, now time.Time) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(runtime.NumCPU(), 4))
	for ; from <= to; from += fillChunk {
		args := []any{from, min(from+fillChunk-1, to), d.copied, filledFor, now, at}
		g.Go(func() error {
			return connected(ctx, d.database, func(conn *pgx.Conn) error {
				// Triggers check what is true of a copy as it is of the original.
				if _, err := conn.Exec(ctx, "set session_replication_role = replica"); err != nil {
					return err
				}
				b := &pgx.Batch{} // one transaction
				for _, sql := range statements[:len(statements)-1] {
					b.Queue(sql, args...)
				}
				if err := conn.SendBatch(ctx, b).Close(); err != nil {
					return err
				}
				_, err := conn.Exec(ctx, statements[len(statements)-1], args...)
				return err
			})
		})
	}
	return g.Wait()
}

// What belongs to all copies together: balances and stock are sums, and the readers of
// the ledger and of the outbox have read all of it.
const (
	sumBalances = `
update account_balances
   set debits  = debits * $1,
       credits = credits * $1`

	sumStock = `
update stock
   set available = available - c.sold,
       sold      = stock.sold + c.sold
  from (select 'sku-' || lpad((n % $2::int)::text, 3, '0') as sku,
               count(*)                                    as sold
          from generate_series(1, $1::int) as n
         group by 1) as c
 where c.sku = stock.sku`

	foldedAll = `
update projections
   set txid     = last.txid,
       position = last.position,
       highest  = (select max(position) from ledger_events)
  from (select txid,
               position
          from ledger_events
         order by txid desc, position desc
         limit 1) as last
 where state = 'live'`

	receivedEverything = `
update outbox_offsets
   set transaction_id = last.transaction_id,
       "offset"       = last."offset"
  from (select transaction_id,
               "offset"
          from outbox
         order by transaction_id desc, "offset" desc
         limit 1) as last`
)
