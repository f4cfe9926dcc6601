package inbox

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

// endDelivery makes a message done, endDeliveries those of one group commit. An end that does not apply is refused with
// its whole batch, by a constraint named inbox_done_by_holder: that of the table, or of the type inbox_ended (the cast).
//
//	the message                                         its end
//	runs, under this holder and this fence              applies
//	is pending, and no claim has followed               applies: a takeover, or an error, leaves it its holder and fence
//	is claimed again by this holder                     is refused by the table: done_fence is below fence
//	is another holder's or dead, has ended, or is gone  is refused by the cast: fewer rows have ended than should
//	is here twice, under two fences                     is refused by the cast: one row has ended, not two
//
// The id and the holder are compared too: after a failover that lost commits, another message may have the number and
// the fence. Rows are locked first, by number, as other statements lock them.
//
// If we die here: all of them have ended, each with its effects, or none has. Test: TestModel.
const (
	endDelivery = `-- inbox.endDelivery
with ending (id, fence, message_id, holder) as (values ($1::bigint, $2::bigint, $3::text, $4::text))` + endAll
	endDeliveries = `-- inbox.endDelivery
with ending (id, fence, message_id, holder) as (select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]))` + endAll

	endAll = `, locked as (
  select id
    from inbox
   where id = any (array(select id from ending))
   order by id
     for no key update
), ended as (
  update inbox
     set status      = 'done',
         first       = false,
         done_fence  = (select max(fence) from ending where ending.id = inbox.id),
         finished_at = clock_timestamp(),
         last_error  = null
   where id = any (array(select id from locked))
     and coalesce(status in ('running', 'pending'), false)
     and (select bool_or((e.message_id, e.holder) = (inbox.message_id, inbox.holder)) from ending e where e.id = inbox.id)
  returning id
)
select ((select count(*) from ended) = (select count(*) from ending))::inbox_ended`
)

// Commit commits a batch that holds the handler's last effect, together with the end of the
// delivery. If the message was taken over or has ended, the constraint refuses the whole batch, and
// IsLost reports it. So the same batch may be committed again after an unknown outcome.
func (d *Delivery) Commit(ctx context.Context, db groupcommit.DB, b *pgx.Batch) error {
	all := &pgx.Batch{QueuedQueries: slices.Clone(b.QueuedQueries)}
	d.queueDone(all)
	err := db.Commit(ctx, all)
	d.endedByHandler = err == nil
	return err
}

func (d *Delivery) queueDone(b *pgx.Batch) {
	b.Queue(endDelivery, d.row, d.fence, d.ID, d.holder)
	b.Queue(promote, d.receiver, d.OrderingKey)
}

// Done ends the delivery in the transaction that holds the handler's last effect, and is its
// last statement. It refuses as Commit does. If the transaction is rolled back after it, though
// the handler returns nil, the message is handled again after some seconds.
func (d *Delivery) Done(ctx context.Context, tx pgx.Tx) error {
	b := &pgx.Batch{}
	d.queueDone(b)
	err := tx.SendBatch(ctx, b).Close()
	d.endedByHandler = err == nil
	return err
}

// IsLost reports whether a transaction was refused because another holder has claimed the message, or
// because it has ended: by another holder, or by an earlier commit of this delivery. The handler stops.
func IsLost(err error) bool { return groupcommit.Constraint(err) == "inbox_done_by_holder" }

// Writes are the statements of this package that may share a group commit. store counts as an insert, though it locks
// the heads that it nudges: the group's lock time-out ends a deadlock over them.
func Writes() []groupcommit.Statement {
	return []groupcommit.Statement{
		{SQL: store, ManyRows: storeMany, Wakes: func(a []any) string { return fmt.Sprint(a[0]) }},
		{SQL: endDelivery, ManyRows: endDeliveries, Locks: "inbox", Key: 1},
		{SQL: endClaim, Locks: "inbox", Key: 1},
		{SQL: promote, ManyRows: promoteMany, Locks: "inbox keys", Key: 2},
	}
}
