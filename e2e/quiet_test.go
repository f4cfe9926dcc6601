package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/payonce/payonce/internal/testrun"
)

// walkStall is how long nothing may change while work is left. The lease, the
// longest backoff and the start of a program fit into it many times.
const walkStall = time.Minute

const undone = `
with wanted as (
  select stream_id,
         data ->> 'refund_id' as refund
    from ledger_events
   where type in ('charge.requested.v1', 'refund.requested.v1')
), notified as (
  select t.stream_id,
         o.data ->> 'refund_id' as refund
    from ledger_events t
    join ledger_events o
      on o.event_id::text = t.data ->> 'event_id'
   where t.type = 'merchant.notified.v1'
)
select (select count(*)
          from inbox
         where status not in ('done', 'discarded')) as open,
       (select count(*)
          from outbox o) as unread,
       (select count(*)
          from wanted w
         where not exists (
                 select
                   from notified t
                  where t.stream_id = w.stream_id
                    and t.refund is not distinct from w.refund)) as unnotified,
       (select count(*)
          from followers p
         where p.name = 'balances'
           and exists (
                 select
                   from ledger_events e
                  where (e.txid, e.position) > (p.txid, p.position))) as unadded`

const stuck = `
select (select concat_ws(', ', open || ' open messages', unread || ' unread', unnotified || ' unnotified', unadded || ' not in the balances')
          from (` + undone + `) u)
    || (select coalesce(string_agg(concat_ws(' ', '; open is', receiver, type, status, 'attempts', attempts, 'deaths', deaths, 'waits', waits,
                                             'due in', date_trunc('milliseconds', due_at - clock_timestamp()), last_error), ''), '')
          from inbox
         where status not in ('done', 'discarded'))
    || (select coalesce(string_agg(concat_ws(' ', '; in a transaction since', date_trunc('milliseconds', clock_timestamp() - xact_start), 'is', application_name,
                                             'of', datname, state, wait_event, regexp_replace(left(query, 200), '\s+', ' ', 'g')), ''), '')
          from pg_stat_activity
         where backend_xid is not null
           and pid <> pg_backend_pid())`

var errNotQuiet = errors.New("work is left")

// progress changes with everything that brings work closer to its end. A message
// that waits forever makes none: its waits are not counted, its attempts are
// bounded.
const progress = `
select concat_ws(' ', (select count(*) from ledger_events), (select count(*) from outbox),
                 (select sum(attempts) from inbox), (select count(*) from inbox where status in ('done', 'discarded')),
                 (select string_agg(concat_ws(' ', txid, position), ' ' order by name) from followers))`

// quiet waits until nothing is left to be done, and gives up when nothing has
// changed for stall. It waits for a server that restarts.
func (w *world) quiet(ctx context.Context, stall time.Duration) error {
	var left int64
	var seen, last, what string
	var err error
	for last = "nothing"; last != seen; {
		last = seen
		if !testrun.Within(stall, func() bool {
			if err = w.tables.QueryRow(ctx, `select open + unread + unnotified + unadded from (`+undone+`) u`).Scan(&left); err == nil && left > 0 {
				err = w.tables.QueryRow(ctx, progress).Scan(&seen)
			}
			return err == nil && (left == 0 || seen != last) || ctx.Err() != nil
		}) {
			break
		}
		if err != nil || left == 0 {
			return err
		}
	}
	err = errors.Join(err, w.tables.QueryRow(ctx, stuck).Scan(&what))
	return errors.Join(fmt.Errorf("%w, and nothing changed for %s: %s", errNotQuiet, stall, what), err)
}
