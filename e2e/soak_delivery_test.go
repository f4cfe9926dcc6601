package e2e_test

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/testrun"
)

// soakDelivery processes the same orders in two deployments. In the first every
// message is delivered once and in order; in the second one to five times, and in any
// order. The two ledgers must be the same: the streams and the postings, without ids and
// times.
func soakDelivery(t *testing.T) {
	t.Helper()
	n := soaked(t, "orders", 2_000, 16)
	orders := deliveryOrders(n)
	plain, wild := &post{}, &post{wild: true, random: testrun.Rand(t)}
	var all sync.WaitGroup
	for _, p := range []*post{plain, wild} {
		p.d = deploy(t, setup{apis: 1, workers: 2})
	}
	for _, p := range []*post{plain, wild} {
		all.Go(func() { p.process(t, orders) })
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	once, often := plain.ledger(t), wild.ledger(t)
	testrun.Same(t, "ledger of many deliveries, with that of one as wanted", once, often)
	if len(once) == 0 || wild.deliveries <= wild.messages || wild.inversions == 0 {
		t.Errorf("%d lines, %d deliveries of %d messages, %d out of order: this showed nothing",
			len(once), wild.deliveries, wild.messages, wild.inversions)
	}
	// What was committed while the post was open came as it was, once.
	mustRead(t, wild.d, wild.deliveries-wild.messages, `select coalesce(sum(duplicates), 0)::bigint from inbox`)
	t.Logf("%d orders, %d messages, delivered %d times, %d of them after a younger one; ledger of %d lines",
		n, wild.messages, wild.deliveries, wild.inversions, len(once))
	if !t.Failed() {
		t.Log(none(wild.deliveries, "deliveries"))
	}
}

// deliveryOrder is an order and what the merchant does with it.
type deliveryOrder struct {
	order
	cancel bool // at once, before a worker has received the order
	refund bool
}

// deliveryOrders are of every way in turn. None of them depends on how fast
// anything is.
func deliveryOrders(n int) []deliveryOrder {
	orders := make([]deliveryOrder, n)
	for i := range orders {
		orders[i] = []deliveryOrder{
			{order: newOrder(visa)},
			{order: newOrder(visa)},
			{order: newOrder(cardDeclined)},
			{order: newOrder(visa), cancel: true},
			{order: newOrder(visa, item{"tshirt", 1_000_000})},
			{order: newOrder(visa), refund: true},
			{order: newOrder(visa), refund: true},
			{order: newOrder(refusedRefund), refund: true},
		}[i%8]
		orders[i].Amount += int64(i)
	}
	return orders
}

// post holds up the messages of one deployment. While it is held the outbox
// fills; the next reader gets what the post made of it.
type post struct {
	wild   bool
	random *rand.Rand // of a wild post
	d      *deployment
	lock   *pgxpool.Conn // of the topic

	messages   int
	deliveries int
	inversions int
}

// process accepts all orders while the post is held, lets the messages through, and
// then does the same with the refunds.
func (p *post) process(t *testing.T, orders []deliveryOrder) {
	t.Helper()
	d := p.d
	lock, err := d.tables.Acquire(t.Context())
	must(t, err)
	defer lock.Release()
	p.lock = lock
	p.hold(t)
	charges := make([]string, len(orders))
	for i, o := range orders {
		charges[i] = d.send(t, o.order).ID
		if o.cancel {
			if got := d.do(t, request{path: "/v1/charges/" + charges[i] + "/cancel", key: "key-" + unique()}); got.Status != http.StatusAccepted {
				t.Errorf("the cancellation was answered %d %s", got.Status, got.Body)
				return
			}
		}
	}
	p.rounds(t, len(orders))
	for i, o := range orders {
		if o.refund {
			d.refund(t, charges[i], 400)
		}
	}
	p.rounds(t, len(orders)+len(orders)/8*3)
}

// rounds lets through what has piled up, and holds the post again while that is
// worked on, until so many outcomes are notified.
func (p *post) rounds(t *testing.T, outcomes int) {
	t.Helper()
	for row[int](t, p.d, `select count(*) from ledger_events where type = 'merchant.notified.v1'`) < outcomes {
		p.letThrough(t)
		testrun.Row(t, p.d.tables, `select not exists (`+behind+`)`)
		p.hold(t)
		testrun.Row(t, p.d.tables, `select not exists (select from inbox where status <> 'done')`)
		if t.Failed() {
			return
		}
	}
}

// hold locks the topic's row as a reader does, in a transaction.
func (p *post) hold(t *testing.T) {
	t.Helper()
	_, err := p.lock.Exec(t.Context(), `
begin;
insert into outbox_topics values ('charges') on conflict do nothing;
select from outbox_topics where topic = 'charges' for update`, pgx.QueryExecModeSimpleProtocol)
	must(t, err)
}

// letThrough gives the lock back. In a wild post copies take the place of what has piled up, which
// this commit makes: one to five of each, shuffled.
func (p *post) letThrough(t *testing.T) {
	t.Helper()
	// The random number draws the copies and their order.
	const back = `
with piled as materialized (
  select *, row_number() over (order by id) as number from outbox
), delivered as materialized (
  select piled.*,
         row_number() over (order by case when $1 then hashint8extended(10 * number + copy, $2) end, number) as turn
    from piled,
         generate_series(1, 5) as copy
   where copy = 1 or $1 and hashint8extended(10 * number + copy, $2 + 1) % 2 = 0
), copied as (
  insert into outbox (topic, message_id, payload, metadata)
  select topic, message_id, payload, metadata from delivered where $1 order by turn
), gone as (
  delete from outbox where $1 and id in (select id from piled)
)
select (select count(*) from piled),
       count(*),
       count(*) filter (where number < before)
  from (select number, lag(number) over (order by turn) as before from delivered) d`
	var messages, deliveries, inversions int
	var draw int64
	if p.wild {
		draw = int64(p.random.IntN(1_000_000))
	}
	must(t, p.d.tables.QueryRow(t.Context(), back, p.wild, draw).Scan(&messages, &deliveries, &inversions))
	p.messages, p.deliveries, p.inversions = p.messages+messages, p.deliveries+deliveries, p.inversions+inversions
	_, err := p.lock.Exec(t.Context(), `commit`)
	must(t, err)
}

// ledger is all that was recorded about each order, in its words: no ids, no times.
func (p *post) ledger(t *testing.T) []string {
	t.Helper()
	const recorded = `
select concat_ws(' ', r.data ->> 'order_id', e.version, e.type,
                 e.data - array['reference', 'payment_intent', 'refund_id', 'provider_refund', 'event_id', 'request_id'],
                 (select string_agg(concat_ws(' ', p.debit, p.credit, p.amount, p.currency), ', ' order by p.debit, p.credit, p.amount)
                    from ledger_postings p
                   where p.stream_id = e.stream_id
                     and p.version = e.version))
  from ledger_events e
  join ledger_events r
    on r.stream_id = e.stream_id
   and r.version = 1
 order by r.data ->> 'order_id', e.version`
	return rows[string](t, p.d, recorded)
}
