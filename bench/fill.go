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
	filledDays = 6
	fillChunk  = 10_000 // charges, in the commits of one turn
)

// copies are the charges of one chunk. Ids begin with their time, as real ones do;
// the provider's are random.
const copies = `
with copies as materialized (
  select n,
         id,
         md5('order' || id)::uuid::text                      as order_id,
         'pi_' || left(md5('intent' || id), 24)              as intent,
         'sku-' || lpad((n %% %[1]d)::text, 3, '0')           as sku,
         md5('1' || id)::uuid                                as requested,
         md5('%[2]d' || id)::uuid                            as outcome,
         at,
         to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as at_text
    from (select n,
                 at,
                 'ch_' || lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || left(md5(n::text), 20) as id
            from (select n,
                         date_trunc('second', $5::timestamptz - $4::interval * (1 - n / $3::float8)) as at
                    from generate_series($1::int, $2::int) as n) as times) as ids
)`

const (
	copyEvents = `
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at, recorded_at)
select md5(e.version || c.id)::uuid, c.id, e.version, e.type, e.schema_version, e.merchant_id,
       {e.data::text}::jsonb, {e.metadata::text}::jsonb, c.at, c.at + e.version * interval '10 ms'
  from copies c
 cross join ledger_events e
 where e.stream_id = {charge}
 order by c.n, e.version`

	copyPostings = `
insert into ledger_postings
       (stream_id, version, leg, merchant_id, debit, credit, amount, currency)
select c.id, p.version, p.leg, p.merchant_id, p.debit, p.credit, p.amount, p.currency
  from copies c
 cross join ledger_postings p
 where p.stream_id = {charge}
 order by c.n, p.version, p.leg`

	copyKeys = `
insert into idempotency_keys
       (scope, operation, key, fingerprint, request, status_code, content_type, location, body, created_at, expires_at)
select k.scope, k.operation, c.order_id, sha256(convert_to(c.id, 'UTF8')),
       convert_to({convert_from(k.request, 'UTF8')}, 'UTF8'), k.status_code, k.content_type, {k.location},
       convert_to({convert_from(k.body, 'UTF8')}, 'UTF8'), c.at, c.at + (k.expires_at - k.created_at)
  from copies c
 cross join idempotency_keys k
 where k.location = '/v1/charges/' || {charge}
 order by c.n`

	copyOutbox = `
insert into outbox
       (topic, message_id, payload, metadata, created_at)
select o.topic, {o.message_id}, convert_to({convert_from(o.payload, 'UTF8')}, 'UTF8'), {o.metadata::text}::jsonb, c.at
  from copies c
 cross join outbox o
 where o.metadata ->> 'ordering_key' = {charge}
   and c.at > now() - interval '23 hours'
 order by c.n, o."offset"`

	copyInbox = `
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, due_at, attempts, waits, fence, done_fence,
        holder, received_at, finished_at)
select i.receiver, i.message_id, i.ordering_key, i.type, i.payload, i.metadata, sha256(i.payload), i.status, i.at, i.attempts, i.waits,
       i.fence, i.done_fence, i.holder, i.at, i.at
  from (select i.receiver, {i.message_id} as message_id, c.id as ordering_key, i.type,
               convert_to({convert_from(i.payload, 'UTF8')}, 'UTF8') as payload, {i.metadata::text}::jsonb as metadata,
               i.status, i.attempts, i.waits, i.fence, i.done_fence, i.holder, c.at, c.n, i.id
          from copies c
         cross join inbox i
         where i.ordering_key = {charge}) as i
 order by i.n, i.id`

	copyReservations = `
insert into reservations
       (charge_id, merchant_id, sku, quantity, status)
select c.id, r.merchant_id, c.sku, r.quantity, r.status
  from copies c
 cross join reservations r
 where r.charge_id = {charge}
 order by c.n`

	copyList = `
insert into charge_list
       (generation, charge_id, merchant_id, order_id, status, created_at, version, view)
select l.generation, c.id, l.merchant_id, c.order_id, l.status, c.at, l.version, {l.view::text}::json
  from copies c
 cross join charge_list l
 where l.charge_id = {charge}
 order by c.n`
)

// What is said once of all copies: balances and stock are sums, and what reads the
// ledger and the outbox has read all of it.
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

	passedAll = `
update outbox_offsets
   set transaction_id = last.transaction_id,
       "offset"       = last."offset"
  from (select transaction_id,
               "offset"
          from outbox
         order by transaction_id desc, "offset" desc
         limit 1) as last`
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
		if text == "charge" {
			written.WriteString(quoted(o.Charge))
			continue
		}
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
	if err := w.copy(ctx, o, charges-1); err != nil {
		return fmt.Errorf("fill the tables: %w", err)
	}
	b := &pgx.Batch{}
	b.Queue(sumBalances, charges)
	b.Queue(sumStock, charges-1, articles)
	b.Queue(foldedAll)
	b.Queue(passedAll)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("fill the tables: %w", err)
	}
	w.filled = charges - 1
	return settle(ctx, conn)
}

// first sends a charge, and waits until it has left everything that it does.
func (w *world) first(ctx context.Context, p pair) error {
	l := w.sending(p.api.URL(), p.use)
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

// copy copies a charge, chunk by chunk, as many at a time as there are processors.
func (w *world) copy(ctx context.Context, o original, charges int) error {
	sent := []string{
		o.statement(copyEvents), o.statement(copyPostings), o.statement(copyKeys), o.statement(copyOutbox),
		o.statement(copyReservations), o.statement(copyList),
	}
	received, now := o.statement(copyInbox), time.Now() // of all of them: ids begin with it
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(runtime.NumCPU(), 4))
	for from := 1; from <= charges; from += fillChunk {
		g.Go(func() error {
			conn, err := pgx.Connect(ctx, w.database)
			if err != nil {
				return fmt.Errorf("connect: %w", err)
			}
			defer conn.Close(context.WithoutCancel(ctx))
			args := []any{from, min(from+fillChunk-1, charges), charges, filledDays * 24 * time.Hour, now}
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

// settle leaves the tables as autovacuum would have left them in the days that
// they took to grow, and what is dirty on the disk. Autovacuum goes on by itself,
// and nobody helps it from here on.
func settle(ctx context.Context, conn *pgx.Conn) error {
	for _, sql := range []string{"vacuum (analyze)", "checkpoint"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}
