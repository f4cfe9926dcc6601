package e2e_test

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/testrun"
)

const paidStory = "charge.requested, inventory.reserved, payment.started, payment.captured, charge.succeeded, merchant.notified"

// deliveryWays are orders with what the merchant does with them, and what is recorded of each. None
// depends on how fast anything is.
var deliveryWays = []struct {
	method string
	items  []item
	cancel bool // at once, before a worker has received the order
	refund bool
	story  string
}{
	{method: visa, story: paidStory},
	{method: visa, story: paidStory},
	{method: cardDeclined, story: "charge.requested, inventory.reserved, payment.started, payment.declined, inventory.released, charge.failed, merchant.notified"},
	{method: visa, cancel: true, story: "charge.requested, charge.cancel_requested, charge.failed, merchant.notified"},
	{method: visa, items: []item{{"tshirt", 1_000_000}}, story: "charge.requested, inventory.rejected, charge.failed, merchant.notified"},
	{method: visa, refund: true, story: paidStory + ", refund.requested, refund.succeeded, merchant.notified"},
	{method: visa, refund: true, story: paidStory + ", refund.requested, refund.succeeded, merchant.notified"},
	{method: refusedRefund, refund: true, story: paidStory + ", refund.requested, refund.failed, merchant.notified"},
}

// soakDelivery delivers every message one to five times, and in any order. What is recorded of each
// order is what one delivery of each message in its order leaves.
func soakDelivery(t *testing.T) {
	t.Helper()
	n := soaked(t, "orders", 2_000, 16)
	d := deploy(t, setup{apis: 1, workers: 2})
	lock, err := d.tables.Acquire(t.Context())
	must(t, err)
	defer lock.Release()
	p := &post{d: d, lock: lock, random: testrun.Rand(t)}
	p.hold(t)
	charges := make([]string, n)
	refunds := 0
	for i := range charges {
		way := deliveryWays[i%len(deliveryWays)]
		charges[i] = d.send(t, newOrder(way.method, way.items...)).ID
		if way.cancel {
			if got := d.do(t, request{path: "/v1/charges/" + charges[i] + "/cancel", key: "key-" + unique()}); got.Status != http.StatusAccepted {
				t.Fatalf("the cancellation was answered %d %s", got.Status, got.Body)
			}
		}
	}
	p.rounds(t, n)
	for i, id := range charges {
		if deliveryWays[i%len(deliveryWays)].refund {
			d.refund(t, id, 400)
			refunds++
		}
	}
	p.rounds(t, n+refunds)
	_, err = lock.Exec(t.Context(), `commit`)
	must(t, err)
	for i, id := range charges {
		testrun.Same(t, id, deliveryWays[i%len(deliveryWays)].story, strings.Join(d.story(t, id), ", "))
	}
	if p.deliveries <= p.messages || p.inversions == 0 {
		t.Errorf("%d deliveries of %d messages, %d out of order: this showed nothing", p.deliveries, p.messages, p.inversions)
	}
	// What was committed while the post was open came as it was, once.
	mustRead(t, d, p.deliveries-p.messages, `select coalesce(sum(duplicates), 0)::bigint from inbox`)
	t.Logf("%d orders, %d messages, delivered %d times, %d of them after a younger one", n, p.messages, p.deliveries, p.inversions)
	if !t.Failed() {
		t.Log(none(p.deliveries, "deliveries"))
	}
}

// post holds up the messages of a deployment. While it is held the outbox
// fills; the next reader gets what the post made of it.
type post struct {
	d      *deployment
	lock   *pgxpool.Conn // of the topic
	random *rand.Rand

	messages, deliveries, inversions int
}

// rounds lets through what has piled up, and holds the post again while that is
// worked on, until so many outcomes are notified.
func (p *post) rounds(t *testing.T, outcomes int) {
	t.Helper()
	for row[int](t, p.d, `select count(*) from ledger_events where type = 'merchant.notified.v1'`) < outcomes {
		p.letThrough(t)
		testrun.Row(t, p.d.tables, `select not exists (select from outbox)`)
		p.hold(t)
		testrun.Row(t, p.d.tables, `select not exists (select from inbox where status <> 'done')`)
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

// letThrough gives the lock back. Copies take the place of what has piled up, which
// this commit makes: one to five of each, shuffled. The random number draws the copies and their order.
func (p *post) letThrough(t *testing.T) {
	t.Helper()
	const back = `
with piled as materialized (
  select *, row_number() over (order by id) as number from outbox
), delivered as materialized (
  select piled.*,
         row_number() over (order by hashint8extended(10 * number + copy, $1), number) as turn
    from piled,
         generate_series(1, 5) as copy
   where copy = 1 or hashint8extended(10 * number + copy, $1 + 1) % 2 = 0
), copied as (
  insert into outbox (topic, message_id, payload, metadata)
  select topic, message_id, payload, metadata from delivered order by turn
), gone as (
  delete from outbox where id in (select id from piled)
)
select (select count(*) from piled),
       count(*),
       count(*) filter (where number < before)
  from (select number, lag(number) over (order by turn) as before from delivered) d`
	var messages, deliveries, inversions int
	must(t, p.d.tables.QueryRow(t.Context(), back, p.random.IntN(1_000_000)).Scan(&messages, &deliveries, &inversions))
	p.messages, p.deliveries, p.inversions = p.messages+messages, p.deliveries+deliveries, p.inversions+inversions
	_, err := p.lock.Exec(t.Context(), `commit`)
	must(t, err)
}
