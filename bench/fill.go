package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// The tables are filled with copies of one charge that the programs have processed:
// valid rows by construction, whatever the programs write. In each copy the charge's
// id, order, payment intent, event ids and day are its own.
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

// originals keeps the rows that are copied apart from the tables that grow. copy_of
// replaces names in a row, also where a column of bytes has them.
const originals = `
create unlogged table originals (
  number bigint generated always as identity,
  source text   not null,
  content json  not null
);
create function copy_of(content json, froms text[], tos text[]) returns json
language plpgsql immutable as $$
declare
  copy text := content;
begin
  for i in 1 .. cardinality(froms) loop
    copy := replace(replace(copy, froms[i], tos[i]),
                    encode(convert_to(froms[i], 'UTF8'), 'hex'), encode(convert_to(tos[i], 'UTF8'), 'hex'));
  end loop;
  return copy;
end
$$`

// selectNames are what belongs to the original alone. The intent is between quotes, since
// it may be the beginning of another word.
const selectNames = `
select array[f.stream_id, f.data ->> 'order_id',
             (select '"' || (data ->> 'payment_intent') || '"' from ledger_events where type = 'payment.captured.v1'),
             to_char(f.occurred_at, 'YYYY-MM-DD')]
       || (select array_agg(event_id::text order by version) from ledger_events)
  from ledger_events f
 where f.version = 1`

// insertCopies inserts the copies of one table's rows, of the charges $1 to $2 of $3. $4
// are the original's names, and $5 is how far back they go from $6. Ids begin with their
// time, as real ones do; the provider's are random. The outbox keeps the last day.
const insertCopies = `
with times as (
  select n,
         $6::timestamptz - $5::interval * (1 - n / $3::float8) as at
    from generate_series($1::int, $2::int) as n
),
ids as (
  select n,
         at,
         'ch_' || lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || left(md5(n::text), 20) as id
    from times
),
copies as materialized (
  select n,
         at,
         array[id, md5('order' || id)::uuid::text, '"pi_' || left(md5('intent' || id), 24) || '"', to_char(at, 'YYYY-MM-DD')]
         || array(select md5(v || id)::uuid::text from generate_series(1, cardinality($4::text[]) - 4) as v) as names
    from ids
)
insert into %[1]s (%[2]s)
select %[2]s
  from copies c
 cross join originals o
 cross join lateral json_populate_record(null::%[1]s, copy_of(o.content, $4, c.names))
 where o.source = '%[1]s'
   and (o.source <> 'outbox' or c.at::date = $6::date)
 order by c.n, o.number`

// What a copy has of its own: identities and the transaction are the database's.
const selectColumns = `
select string_agg(quote_ident(attname), ', ' order by attnum)
  from pg_attribute
 where attrelid = $1::text::regclass
   and attnum > 0
   and not attisdropped
   and attidentity = ''
   and attgenerated = ''
   and atttypid <> 'xid8'::regtype`

// fill lets the programs process one charge, and copies it until there are so many. The
// copies were never at the provider or a merchant.
func (d *deployment) fill(ctx context.Context, charges int) error {
	err := d.while(ctx, []string{"api", "worker"}, func(of *running) error { return d.first(ctx, of) })
	if err != nil {
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
	if err := d.begin(ctx, of); err != nil {
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

// Triggers check what is true of a copy as it is of the original.
const copying = "set timezone = 'UTC'; set session_replication_role = replica"

// copy makes a checkpoint when most copies are there. The first change of a page after
// a checkpoint writes the whole page to the log, and the ids of events touch all pages
// of their index: the copies that follow do that, and what is measured later finds the
// tables as they are between two checkpoints, however large they are.
func (d *deployment) copy(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, copying+";"+originals); err != nil {
		return err
	}
	var names []string
	if err := conn.QueryRow(ctx, selectNames).Scan(&names); err != nil {
		return err
	}
	var statements []string
	for _, table := range copied {
		if _, err := conn.Exec(ctx, fmt.Sprintf("insert into originals (source, content) select '%[1]s', to_json(t) from %[1]s t", table)); err != nil {
			return err
		}
		var columns string
		if err := conn.QueryRow(ctx, selectColumns, table).Scan(&columns); err != nil {
			return err
		}
		statements = append(statements, fmt.Sprintf(insertCopies, table, columns))
	}
	now, most := time.Now(), d.copied*4/5
	for _, part := range [][2]int{{1, most}, {most + 1, d.copied}} {
		if _, err := conn.Exec(ctx, "checkpoint"); err != nil {
			return err
		}
		if err := d.copyRange(ctx, statements, part[0], part[1], names, now); err != nil {
			return err
		}
	}
	b := &pgx.Batch{}
	b.Queue(sumBalances, d.copied+1)
	b.Queue(sumStock, d.copied)
	b.Queue(foldedAll)
	b.Queue(receivedEverything)
	b.Queue("drop function copy_of")
	b.Queue("drop table originals")
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, "vacuum (analyze)") // as autovacuum would have left the tables
	return err
}

// copyRange makes the copies with these numbers, chunk by chunk, as many at a time as
// there are processors.
func (d *deployment) copyRange(ctx context.Context, statements []string, from, to int, names []string, now time.Time) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(runtime.NumCPU(), 4))
	for ; from <= to; from += fillChunk {
		args := []any{from, min(from+fillChunk-1, to), d.copied, names, filledFor, now}
		g.Go(func() error {
			return connected(ctx, d.database, func(conn *pgx.Conn) error {
				if _, err := conn.Exec(ctx, copying); err != nil {
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
   set available = available - $1::int,
       sold      = sold + $1::int
 where sold > 0`

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
