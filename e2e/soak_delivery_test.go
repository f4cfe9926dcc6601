package e2e_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
)

// soakDelivery processes the same orders in two deployments. In the first every
// message is delivered once and in order; in the second one to five times, and in any
// order. The two ledgers must be the same: the streams and the postings, without ids and
// times.
func soakDelivery(t *testing.T) {
	t.Helper()
	n := soaked(t, "orders", 2_000, 16)
	orders := deliveryOrders(n)
	plain, wild := &post{}, &post{wild: true}
	var all sync.WaitGroup
	for _, p := range []*post{plain, wild} {
		stock := map[string]int{"tshirt": 2 * n, "rarity": 0}
		p.d = deploy(t, setup{apis: 1, workers: 2, stock: stock})
	}
	for _, p := range []*post{plain, wild} {
		all.Go(func() { p.process(t, orders) })
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	once, often := plain.ledger(t), wild.ledger(t)
	if diff := cmp.Diff(once, often); diff != "" {
		t.Errorf("the ledgers of single delivery (-) and of many (+):\n%s", diff)
	}
	if len(once) == 0 || wild.deliveries <= wild.messages || wild.inversions == 0 {
		t.Errorf("%d lines, %d deliveries of %d messages, %d out of order: this showed nothing",
			len(once), wild.deliveries, wild.messages, wild.inversions)
	}
	// What was committed while the post was open came as it was, once.
	passed := row[int64](t, wild.d, `select count(*) from outbox`) - int64(wild.messages)
	mustRead(t, wild.d, wild.deliveries-wild.messages, `select coalesce(sum(duplicates), 0)::bigint from inbox`)
	t.Logf("%d orders, %d messages, %d more that passed the post while it was open; delivered %d times, %d of them after a younger one; ledger of %d lines, %s and %s",
		n, wild.messages, passed, wild.deliveries, wild.inversions, len(once), hashOf(once), hashOf(often))
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
			{order: newOrder(visa, item{"rarity", 1})},
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
	wild bool
	d    *deployment

	at         []position // of the readers, when they were held
	messages   int
	deliveries int
	inversions int
}

// position is a place in a topic of the outbox.
type position struct {
	Topic       string
	Transaction string
	Offset      int64
}

// process accepts all orders while the post is held, lets the messages through, and
// then does the same with the refunds.
func (p *post) process(t *testing.T, orders []deliveryOrder) {
	t.Helper()
	d := p.d
	await.Row(t, d.tables, `select count(*) = 2 from outbox_offsets`) // each reader has its row
	p.hold(t)
	charges := make([]string, len(orders))
	for i, o := range orders {
		charges[i] = d.send(t, o.order).ID
		if o.cancel {
			if got := d.cancel(t, charges[i]); got.Status != http.StatusAccepted {
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
		await.Row(t, p.d.tables, `select not exists (`+behind+`)`)
		p.hold(t)
		await.Row(t, p.d.tables, `select not exists (select from inbox where status <> 'done')`)
		if t.Failed() {
			return
		}
	}
}

// inTransaction is a commit of the test's own on the outbox.
func (p *post) inTransaction(t *testing.T, do func(pgx.Tx) error) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), p.d.tables, do); err != nil {
		t.Error(err)
	}
}

// hold puts the readers to a place that nothing comes after.
func (p *post) hold(t *testing.T) {
	t.Helper()
	const find = `
select topic,
       transaction_id::text,
       "offset"
  from outbox_offsets
   for update`
	const far = `
update outbox_offsets
   set transaction_id = '9223372036854775807'`
	p.inTransaction(t, func(tx pgx.Tx) error {
		found, err := tx.Query(t.Context(), find)
		if err != nil {
			return err
		}
		if p.at, err = pgx.CollectRows(found, pgx.RowToStructByPos[position]); err != nil {
			return fmt.Errorf("find the readers: %w", err)
		}
		_, err = tx.Exec(t.Context(), far)
		return err
	})
}

// letThrough puts the readers back. In a wild post they come after all that has
// piled up, and before copies of it, which this commit makes: one to five of each,
// shuffled. What others are about to commit keeps its place and comes as it is.
func (p *post) letThrough(t *testing.T) {
	t.Helper()
	// The order is that of the column: its text would put 100 before 98.
	const piled = `
select o.topic,
       o.transaction_id::text as xid,
       o."offset"
  from outbox o
 where o.topic = $1
   and (o.transaction_id, o."offset") > ($2::text::xid8, $3)
   and o.transaction_id < pg_snapshot_xmin(pg_current_snapshot())
 order by o.transaction_id, o."offset"`
	const duplicate = `
insert into outbox
       (topic, message_id, payload, metadata)
select topic, message_id, payload, metadata
  from outbox
 where transaction_id = $1::text::xid8
   and "offset" = $2`
	const back = `
update outbox_offsets
   set transaction_id = $2::text::xid8,
       "offset" = $3
 where topic = $1`
	p.inTransaction(t, func(tx pgx.Tx) error {
		var pile []position
		for i, at := range p.at {
			found, err := tx.Query(t.Context(), piled, at.Topic, at.Transaction, at.Offset)
			if err != nil {
				return err
			}
			its, err := pgx.CollectRows(found, pgx.RowToStructByPos[position])
			if err != nil {
				return err
			}
			if pile = append(pile, its...); p.wild && len(its) > 0 {
				p.at[i] = its[len(its)-1]
			}
		}
		p.messages += len(pile)
		p.deliveries += len(pile)
		if p.wild && len(pile) > 0 {
			turns := p.shuffled(len(pile))
			p.deliveries += len(turns) - len(pile)
			b := &pgx.Batch{}
			for _, i := range turns {
				b.Queue(duplicate, pile[i].Transaction, pile[i].Offset)
			}
			if err := tx.SendBatch(t.Context(), b).Close(); err != nil {
				return fmt.Errorf("copy %d messages: %w", len(turns), err)
			}
		}
		for _, at := range p.at {
			if _, err := tx.Exec(t.Context(), back, at.Topic, at.Transaction, at.Offset); err != nil {
				return err
			}
		}
		return nil
	})
}

// shuffled are the turns in which n messages come, each one to five times.
func (p *post) shuffled(n int) []int {
	var turns []int
	for i := range n {
		for range 1 + rand.IntN(5) { //nolint:gosec // traffic
			turns = append(turns, i)
		}
	}
	rand.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
	for i := range turns[1:] {
		if turns[i+1] < turns[i] {
			p.inversions++
		}
	}
	return turns
}

// ledger is all that was recorded about each order, in its words: no ids, no
// times. It takes the copies out of the outbox, of which the audit knows nothing.
func (p *post) ledger(t *testing.T) []string {
	t.Helper()
	p.d.exec(t, `delete from outbox o using ledger_events e where e.event_id::text = o.message_id and e.txid <> o.transaction_id`)
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

func hashOf(lines []string) string {
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:8])
}
