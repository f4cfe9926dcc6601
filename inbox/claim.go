package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

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
// The offsets keep the subqueries probes of one key, and walking takes the other
// ways from the planner, which a table whose messages are mostly of one key would
// lead astray. So does the order, with the key compared twice: it is that of the
// indexes of keys alone (see receive). As anything else a probe could read all open
// messages, which stalls every claim behind a backlog. A claim looks at each message that waits behind
// another one of its key, so whoever sends should bound how many there can be.
//
// Nothing open is due before $11 (see lookAhead).
//
// now() is a moment earlier than clock_timestamp() and, unlike it, can be a
// bound of the index. Coalesced, the time of the accused leads to inbox_suspects
// alone: where the planner knew of no suspects it looked for them in inbox_due, at
// all that was due.
const claim = `
with accused as (
  select i.id,
         i.due_at,
         least(32, power(2, i.deaths - 2)) as weight
    from inbox i
   where i.receiver = $1
     and i.status = 'running'
     and i.deaths >= 2
     and i.id <> all($5::bigint[])
     and coalesce(i.due_at + (hashint8(i.id # i.fence) & 1023) / 1024.0
                           * least($7::interval, $6::interval * power(2, least(i.deaths, $10::int))) <= now(), false)
   order by i.due_at
   limit least($2::bigint, $8::bigint)
     for update skip locked
), suspects as (
  select a.id
    from (select id,
                 sum(weight) over (order by due_at, id) as together
            from accused) a
   where a.together <= $8::bigint
), others as (
  select i.id
    from inbox i
   where i.receiver = $1
     and i.status in ('pending', 'running')
     and i.due_at >= $11
     and i.due_at <= now()
     and i.id <> all($5::bigint[])
     and (i.status = 'pending'
          or i.deaths < 2
         and i.due_at + (hashint8(i.id # i.fence) & 1023) / 1024.0
                      * least($7::interval, $6::interval * power(2, i.deaths)) <= now())
     and not exists (
           select
             from inbox other
            where other.receiver = i.receiver
              and other.ordering_key >= i.ordering_key
              and other.ordering_key <= i.ordering_key
              and other.status in ('pending', 'running')
              and other.id <> i.id
              and (other.status = 'running' or (other.id < i.id and i.status = 'pending'))
            order by other.ordering_key, other.id
           offset 0)
     and ($9 or i.status = 'running' or not exists (
           select
             from inbox parked
            where parked.receiver = i.receiver
              and parked.ordering_key >= i.ordering_key
              and parked.ordering_key <= i.ordering_key
              and parked.status = 'dead'
              and parked.id < i.id
            order by parked.ordering_key, parked.id
           offset 0))
   order by i.due_at
   limit $2::bigint - (select count(*) from suspects)
     for update skip locked
), due as (
  select id from suspects
   union all
  select id from others
)
update inbox i
   set status   = 'running',
       fence    = i.fence + 1,
       attempts = i.attempts + 1,
       deaths   = case i.status when 'running' then i.deaths + 1 else 0 end,
       holder   = $3,
       due_at   = clock_timestamp() + $4::interval
 where i.id = any (array(select id from due))
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

// lookAhead is read behind a claim, in its transaction. It returns how long it takes
// until a message is due that was not due yet, and a time before which no open message
// is due.
//
// The second bounds the next claim ($11). While a transaction anywhere holds an old
// snapshot, PostgreSQL keeps the entries of inbox_due that are dead, and they stand
// before the living: without a bound each claim would read them all. A message may be
// committed later than its due time, so the bound stays lookBehind before the present,
// and once in fullLook a claim goes without it.
const lookAhead = `
select (select due_at - now()
          from inbox
         where receiver = $1
           and status in ('pending', 'running')
           and due_at is not null
           and due_at > now()
         order by due_at
         limit 1),
       least(now() - $3::interval,
             (select due_at
                from inbox
               where receiver = $1
                 and status in ('pending', 'running')
                 and due_at is not null
                 and due_at >= $2
               order by due_at
               limit 1))`

const (
	lookBehind = 100 * time.Millisecond
	fullLook   = time.Second
)

// walking are the settings of a claim, and of what operators read. A price that forbids
// must not look like a query that is worth compiling.
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

// claimed is a delivery and what its handler need not know.
type claimed struct {
	Delivery

	deaths    int  // of holders, one after another, before this one
	onReceipt bool // stored as claimed, by the page that brought it
}

// claimUpTo commits the claim of at most n messages, with suspects of at most
// that weight among them, before anybody acts on it. The attempt is counted here, so that a
// holder that dies has been counted, and whatever its handler rolls back has not. It
// also returns when the next message is due, at most slowPoll from now.
//
// If we die here: the rows are leased to nobody, and are taken again when the
// lease ends. Test: TestLease/a_message_of_a_silent_holder_is_taken_over….
func (r *run) claimUpTo(ctx context.Context, n, suspects int, held []int64) (messages []claimed, next time.Duration, err error) {
	p := r.Policy
	from := r.dueFrom
	if time.Since(r.lookedAt) >= fullLook { //nolint:forbidigo // it decides only how much is read
		from = time.Time{}
	}
	b := &pgx.Batch{}
	b.Queue(walkIndexes)
	b.Queue(claim, r.Receiver, n, r.Holder, p.Lease, held, p.BackoffBase, p.BackoffCap,
		suspects, p.Parked == Pass, p.doublings(), from).Query(func(rows pgx.Rows) error {
		messages, err = pgx.CollectRows(rows, scanClaimed)
		return err
	})
	b.Queue(lookAhead, r.Receiver, from, lookBehind).QueryRow(func(row pgx.Row) error {
		var due *time.Duration
		err := row.Scan(&due, &r.dueFrom)
		if next = slowPoll; due != nil {
			next = min(next, *due)
		}
		return err
	})
	if err := r.DB.Commit(ctx, b); err != nil {
		return nil, 0, fmt.Errorf("claim messages of %s: %w", r.Receiver, err)
	}
	if from.IsZero() {
		r.lookedAt = time.Now() //nolint:forbidigo // as above
	}
	return messages, next, nil
}

func scanClaimed(row pgx.CollectableRow) (claimed, error) {
	var c claimed
	var metadata []byte
	err := row.Scan(&c.row, &c.fence, &c.Attempt, &c.deaths, &c.Waits, &c.ID, &c.Type, &c.OrderingKey,
		&c.Payload, &metadata, &c.claimed)
	if json.Unmarshal(metadata, &c.Metadata) != nil {
		// Not ours, or not strings. The claim commits for all its rows, so one row's
		// content must not lose the others.
		c.Metadata = nil
	}
	return c, err
}
