package inbox

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Claim takes due messages for a holder: waiting ones whose time has come, and
// running ones whose lease has ended. For one ordering key only the oldest open
// message is taken, and none while another one runs. A parked message holds up
// the younger ones of its key, unless the receiver lets them pass ($9). The
// unique index on running rows refuses whatever this query might miss.
//
// Suspects, whose holders went silent three times in a row, are taken apart from
// the others, and no more of them than their weights allow ($8; see suspect.go). A
// suspect runs already, so no key holds it up.
//
// A message whose holder went silent waits a little longer than its lease, a
// part of the backoff that its id and fence draw: should one message end every
// process that takes it, those that died beside it are soon taken without it.
//
// What this holder still works on is left out: should its lease have lapsed, the
// next heartbeat revives it, unless another holder was faster.
//
// A claim looks at so many messages and no more ($11), so that none takes longer
// for the length of a queue. If that is not enough to find work, long queues
// behind few keys are in the way: those that have two waiting ones of their key
// before them are put off for a minute or so, and the next claim sees past them.
// Whatever is claimed calls back the next two of its key. Both is no more than
// good sense: a message that nobody calls comes back by itself, and no lock is
// waited for.
//
// A probe of one key is one entry of the one index that has its order: rows are
// compared, and not columns, whose order would not matter; the offset keeps the
// order in an exists; and walking takes the other ways from the planner, which
// a table whose messages are mostly of one key would lead astray. As anything else
// a probe could read all open messages, which stalls every claim behind a backlog.
//
// now() is a moment earlier than clock_timestamp() and, unlike it, can be a
// bound of the index.
const claim = `
with accused as (
  select i.id,
         i.due_at,
         least(32, power(2, i.deaths - 2)) as weight
    from inbox i
   where i.receiver = $1
     and i.status = 'running'
     and i.deaths >= 2
     and i.due_at <= now()
     and i.id <> all($5::bigint[])
     and i.due_at + (hashint8(i.id # i.fence) & 1023) / 1024.0
                  * least($7::interval, $6::interval * power(2, least(i.deaths, $10::int))) <= now()
   order by i.due_at
   limit least($2::bigint, $8::bigint)
     for update skip locked
), suspects as (
  select a.id
    from (select id,
                 sum(weight) over (order by due_at, id) as together
            from accused) a
   where a.together <= $8::bigint
), looked as materialized (
  select i.id,
         i.receiver,
         i.ordering_key,
         i.status,
         i.due_at,
         i.status = 'running' or not exists (
           select
             from inbox running
            where (running.receiver, running.ordering_key) >= (i.receiver, i.ordering_key)
              and (running.receiver, running.ordering_key) <= (i.receiver, i.ordering_key)
              and running.status = 'running'
            order by running.receiver, running.ordering_key
            limit 1 offset 0)
         and not exists (
           select
             from inbox older
            where (older.receiver, older.ordering_key, older.id) >= (i.receiver, i.ordering_key, 0)
              and (older.receiver, older.ordering_key, older.id) < (i.receiver, i.ordering_key, i.id)
              and older.status in ('pending', 'running')
            order by older.receiver, older.ordering_key, older.id
            limit 1 offset 0)
         and ($9 or not exists (
           select
             from inbox parked
            where (parked.receiver, parked.ordering_key, parked.id) >= (i.receiver, i.ordering_key, 0)
              and (parked.receiver, parked.ordering_key, parked.id) < (i.receiver, i.ordering_key, i.id)
              and parked.status = 'dead'
            order by parked.receiver, parked.ordering_key, parked.id
            limit 1 offset 0)) as free
    from (select id, receiver, ordering_key, status, due_at
            from inbox
           where receiver = $1
             and status in ('pending', 'running')
             and due_at <= now()
             and id <> all($5::bigint[])
             and (status = 'pending'
                  or deaths < 2
                 and due_at + (hashint8(id # fence) & 1023) / 1024.0
                            * least($7::interval, $6::interval * power(2, deaths)) <= now())
           order by due_at
           limit $11) i
), others as (
  select same.id
    from looked l
   cross join lateral (
           select i.id
             from inbox i
            where i.id = l.id
              and i.status = l.status
              and i.due_at = l.due_at
            limit 1
              for update skip locked) same
   where l.free
   limit $2::bigint - (select count(*) from suspects)
), behind as (
  select same.id
    from looked l
   cross join lateral (
           select i.id
             from inbox i
            where i.id = l.id
              and i.status = l.status
              and i.due_at = l.due_at
            limit 1
              for update skip locked) same
   where case when (select count(*) from others) < $2::bigint - (select count(*) from suspects)
              then (select count(*) from looked) = $11
              else false end
     and l.status = 'pending'
     and exists (
           select
             from inbox older
            where (older.receiver, older.ordering_key, older.id) >= (l.receiver, l.ordering_key, 0)
              and (older.receiver, older.ordering_key, older.id) < (l.receiver, l.ordering_key, l.id)
              and older.status in ('pending', 'running')
            order by older.receiver, older.ordering_key, older.id
            limit 1 offset 2)
), put_off as (
  update inbox i
     set due_at = clock_timestamp() + (0.5 + random()) * interval '1 minute'
    from behind
   where i.id = behind.id
), due as (
  select id from suspects
   union all
  select id from others
), following as (
  select same.id
    from due
    join inbox i
      on i.id = due.id
   cross join lateral (
           select younger.id
             from inbox younger
            where (younger.receiver, younger.ordering_key, younger.id) > (i.receiver, i.ordering_key, i.id)
              and (younger.receiver, younger.ordering_key) <= (i.receiver, i.ordering_key)
              and younger.status in ('pending', 'running')
            order by younger.receiver, younger.ordering_key, younger.id
            limit 2) next
   cross join lateral (
           select same.id
             from inbox same
            where same.id = next.id
              and same.status = 'pending'
              and same.due_at > now()
              and same.attempts = 0
              and same.waits = 0
            limit 1
              for update skip locked) same
), called as (
  update inbox i
     set due_at = clock_timestamp()
    from following
   where i.id = following.id
)
update inbox i
   set status   = 'running',
       fence    = i.fence + 1,
       attempts = i.attempts + 1,
       deaths   = case i.status when 'running' then i.deaths + 1 else 0 end,
       holder   = $3,
       due_at   = clock_timestamp() + $4::interval
  from due
 where i.id = due.id
returning i.id,
          i.fence,
          i.attempts,
          i.deaths,
          i.waits,
          i.message_id,
          i.type,
          i.ordering_key,
          i.payload,
          i.metadata,
          clock_timestamp() as claimed`

// walking are the settings of a claim. A price that forbids must not look like a
// query that is worth compiling.
func walking() postgres.Settings {
	return postgres.Settings{
		"enable_bitmapscan":       "off",
		"enable_hashjoin":         "off",
		"enable_incremental_sort": "off",
		"enable_mergejoin":        "off",
		"enable_seqscan":          "off",
		"enable_sort":             "off",
		"jit":                     "off",
	}
}

// looked bounds how many messages a claim of so many looks at.
func looked(claim int) int { return 200 + 4*claim }

// claimed is a delivery and what its handler need not know.
type claimed struct {
	Delivery

	deaths int // of holders, one after another, before this one
}

// claimUpTo commits the claim of at most n messages, with suspects of at most
// that weight among them, before anybody acts on it. The attempt is counted here, so that a
// holder that dies has been counted, and whatever its handler rolls back has not.
//
// If we die here: the rows are leased to nobody, and are taken again when the
// lease ends. Test: TestLease/a_message_of_a_silent_holder_is_taken_over….
func (r *run) claimUpTo(ctx context.Context, n, suspects int, held []int64) ([]claimed, error) {
	p := r.Policy
	rows, err := r.DB.QueryWith(ctx, walking(), claim, r.Receiver, n, r.Holder, p.Lease, held, p.BackoffBase, p.BackoffCap,
		suspects, p.Parked == Pass, p.doublings(), looked(n))
	if err != nil {
		return nil, fmt.Errorf("claim messages of %s: %w", r.Receiver, err)
	}
	messages, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (claimed, error) {
		var c claimed
		var metadata []byte
		err := row.Scan(&c.row, &c.fence, &c.Attempt, &c.deaths, &c.Waits, &c.ID, &c.Type, &c.OrderingKey,
			&c.Payload, &metadata, &c.claimed)
		if json.Unmarshal(metadata, &c.Metadata) != nil {
			// Not ours, or not strings. The claim has committed for all its rows, so
			// one row's content must not lose the others.
			c.Metadata = nil
		}
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("claim messages of %s: %w", r.Receiver, err)
	}
	return messages, nil
}
