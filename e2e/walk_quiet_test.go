package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// liveness bounds the way from the end of a fault to the end of all work. Two
// leases and the longest backoff lie within it. A machine that is busy may need
// longer, up to overload; a run that did is done again.
const (
	liveness = 5 * time.Second
	overload = 30 * time.Second
)

const undone = `
with wanted as (
  select stream_id,
         data ->> 'refund_id' as refund
    from ledger_events
   where type in ('charge.requested.v1', 'refund.requested.v1')
), told as (
  select t.stream_id,
         o.data ->> 'refund_id' as refund
    from ledger_events t
    join ledger_events o
      on o.event_id::text = t.data ->> 'event_id'
   where t.type = 'merchant.notified.v1'
)
select (select count(*)
          from inbox
         where status not in ('done', 'discarded'))
     + (select count(*)
          from outbox o
         where not exists (
                 select
                   from outbox_offsets f
                  where f.topic = o.topic
                    and (f.transaction_id, f."offset") >= (o.transaction_id, o."offset")))
     + (select count(*)
          from wanted w
         where not exists (
                 select
                   from told t
                  where t.stream_id = w.stream_id
                    and t.refund is not distinct from w.refund))
     + (select count(*)
          from projections p
         where p.state = 'live'
           and exists (
                 select
                   from ledger_events e
                  where (e.txid, e.position) > (p.txid, p.position)))`

const stuck = `
select coalesce(string_agg(concat_ws(' ', receiver, type, status, 'attempts', attempts, 'deaths', deaths, 'waits', waits,
                                     'due in', date_trunc('milliseconds', due_at - clock_timestamp()), last_error), '; '), 'no message')
  from inbox
 where status not in ('done', 'discarded')`

var errNotQuiet = errors.New("work is left")

// quiet waits until nothing is left to be done.
func (p *place) quiet(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience+time.Second)
	defer cancel()
	var left int64
	var err error
	done := within(patience, func() bool {
		err = p.db.QueryRow(ctx, undone).Scan(&left)
		return err != nil || left == 0
	})
	if err != nil || done {
		return err
	}
	var what string
	err = p.db.QueryRow(ctx, stuck).Scan(&what)
	return errors.Join(fmt.Errorf("%w after %s: %d things, of them %s", errNotQuiet, patience, left, strings.TrimSpace(what)), err)
}
