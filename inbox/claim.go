package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A claim takes messages for a holder: of each ordering key the oldest open one, and none
// while another one of the key runs. There are three statements, for what is due, for
// suspected poison messages, and for what is held back. The index inbox_one_running_per_key
// refuses whatever they miss.
//
// The plans of these statements are kept, so they must be right for any content of the
// table: "offset 0" and an order that exists in one index alone make each subquery a probe
// of one key. A claim reads each message that waits behind another one of its key.

// claimDue claims pending messages whose time has come and running ones whose lease has
// expired, but none that this holder still handles ($5), whose lease the next heartbeat
// renews. No open message is due before $9 (see lookAhead). A message for which its
// partition has no share ($11, $12; $13 for the others) loses its due time: it is held
// back. $10 messages are read, and $2 of those that fit are claimed. now(), unlike
// clock_timestamp(), can bound an index scan.
const claimDue = `
with due as (
  select i.id, i.partition_key, i.status, i.due_at
    from inbox i
   where i.receiver = $1
     and i.status in ('pending', 'running')
     and i.due_at >= $9
     and i.due_at <= now()
     and i.id <> all($5::bigint[])
     and case i.status when 'running' then i.deaths < 2 and ` + isSilent + ` else ` + isFirstOfKey + ` end
   order by i.due_at
   limit $10
     for update skip locked
), shared as (
  select due.id, due.due_at,
         due.status = 'running' or due.partition_key = ''
         or row_number() over (partition by due.partition_key order by due.due_at, due.id) <= coalesce(its.share, $13) as fits
    from due
    left join unnest($11::text[], $12::int[]) as its (partition_key, share) on its.partition_key = due.partition_key
), found as (
  select id, fits
    from (select id, fits, count(*) filter (where fits) over (order by due_at, id) as place from shared) s
   where not fits or place <= $2` + claimFound

// isSilent holds for a running message i whose holder went silent: a little longer than
// its lease, a part of the backoff that its id and fence select. If a message kills every
// process that takes it, the messages that ran beside it are soon claimed without it.
const isSilent = `i.due_at + make_interval(secs => (hashint8(i.id # i.fence) & 1023) / 1024.0
                 * least($7::float8, $6::float8 * power(2, least(i.deaths, 99)))) <= now()`

// isFirstOfKey holds for a pending message i that no message of its key blocks. A dead
// letter blocks it unless $8.
const isFirstOfKey = `not exists (
           select from inbox running
            where running.receiver = i.receiver and running.ordering_key = i.ordering_key and running.status = 'running'
           offset 0)
     and not exists (
           select from inbox older
            where older.receiver = i.receiver and older.ordering_key >= i.ordering_key and older.ordering_key <= i.ordering_key
              and older.status in ('pending', 'running') and older.id < i.id
            order by older.ordering_key, older.id
           offset 0)
     and ($8 or not exists (
           select from inbox dead
            where dead.receiver = i.receiver and dead.ordering_key >= i.ordering_key and dead.ordering_key <= i.ordering_key
              and dead.status = 'dead' and dead.id < i.id
            order by dead.ordering_key, dead.id
           offset 0))`

// claimFound claims what was found, for holder $3 with lease $4, and holds back what does
// not fit. The arrays keep it a probe of each row; a join was planned to read the table.
const claimFound = `
)
update inbox i
   set status     = case when i.id = any (f.fitting) then 'running' else 'pending' end,
       fence      = i.fence + (i.id = any (f.fitting))::int,
       attempts   = i.attempts + (i.id = any (f.fitting))::int,
       deaths     = case i.status when 'running' then i.deaths + 1 else 0 end,
       history    = case i.status when 'running' then ` + history + ` 'lease_ended_at', i.due_at) else i.history end,
       holder     = case when i.id = any (f.fitting) then $3 else i.holder end,
       claimed_at = case when i.id = any (f.fitting) then clock_timestamp() else i.claimed_at end,
       due_at     = case when i.id = any (f.fitting) then clock_timestamp() + $4::interval end
  from (select array(select id from found where fits) as fitting) f
 where i.id = any (array(select id from found))
returning i.status = 'pending' as held_back, i.id, i.fence, i.attempts, i.deaths, i.waits,
          i.message_id, i.type, i.ordering_key, i.partition_key, i.payload, i.metadata, clock_timestamp() as claimed`

const (
	// suspicion is how many deaths in a row make a suspected poison message: one that kills
	// its process dies with every holder, one that runs beside it with some. With every
	// further death half as many suspects are tried at a time, from the eighth on a single
	// one, so a poison message takes no other message with it more than eight times. Claims
	// and the index inbox_suspects see a row before its next claim, hence one less.
	suspicion = 3
	// maxWeight bounds the weights of the suspected poison messages that one process tries at a time.
	maxWeight = 32
)

// weight is 0 if the message is no suspect, 1 for a new suspect, and doubles with each
// death.
func (d *Delivery) weight() int {
	if d.deaths < suspicion {
		return 0
	}
	return min(maxWeight, 1<<min(d.deaths-suspicion, 16))
}

// claimPoison claims suspected poison messages whose lease has expired, no more of them
// than their weights allow ($8). Coalesced, the comparison of their time leads to
// inbox_suspects alone: without statistics the planner would read all that is due.
const claimPoison = `
with suspects as (
  select i.id, i.due_at, least(32, power(2, i.deaths - 2)) as weight
    from inbox i
   where i.receiver = $1
     and i.status = 'running'
     and i.deaths >= 2
     and i.id <> all($5::bigint[])
     and coalesce(` + isSilent + `, false)
   order by i.due_at
   limit least($2::bigint, $8::bigint)
     for update skip locked
), found as (
  select s.id, true as fits
    from (select id, sum(weight) over (order by due_at, id) as total from suspects) s
   where s.total <= $8::bigint` + claimFound

// claimHeldBack claims the oldest messages that are held back of each partition ($5), as
// many as its share ($7). Those up to $6 are gone: their dead index entries are not read.
const claimHeldBack = `
with found as (
  select h.id, true as fits
    from unnest($5::text[], $6::bigint[], $7::int[]) as p (partition_key, gone, share)
   cross join lateral (
           select i.id
             from inbox i
            where i.receiver = $1
              and i.partition_key = p.partition_key
              and i.status = 'pending'
              and i.due_at is null
              and i.id > p.gone
              and ` + isFirstOfKey + `
            order by i.receiver, i.partition_key, i.id
            limit p.share
              for update skip locked) h
   limit $2` + claimFound

// lookAhead is read after a claim, in its transaction. It returns the present, when the
// next message becomes due that is not due yet, and the first due time at or after $2,
// which bounds the next claim: while a transaction holds an old snapshot, PostgreSQL keeps
// dead entries of inbox_due before the live ones, which each claim would read. After a full
// look ($4) it also returns whether there is a suspected poison message, or one that is due
// later than $3 allows, and the partitions of which messages are held back, by any process.
const lookAhead = `
select now(),
       (select due_at from inbox
         where receiver = $1 and status in ('pending', 'running') and due_at is not null and due_at > now()
         order by due_at
         limit 1),
       (select due_at from inbox
         where receiver = $1 and status in ('pending', 'running') and due_at is not null and due_at >= $2
         order by due_at
         limit 1),
       $4 and coalesce((select true from inbox
                         where receiver = $1 and status = 'running' and deaths >= 2 and coalesce(due_at <= now(), false)
                         order by due_at
                         limit 1),
                       (select true from inbox
                         where receiver = $1 and status in ('pending', 'running') and due_at is not null and due_at > now() + $3::interval
                         order by due_at
                         limit 1), false),
       case when $4 then array(
         with recursive held (partition_key) as (
           (select partition_key from inbox
             where receiver = $1 and status = 'pending' and due_at is null
             order by receiver, partition_key
             limit 1)
            union all
           select (select i.partition_key from inbox i
                    where i.receiver = $1 and i.status = 'pending' and i.due_at is null and i.partition_key > held.partition_key
                    order by i.receiver, i.partition_key
                    limit 1)
             from held
            where held.partition_key is not null
         )
         select partition_key from held where partition_key is not null) end`

// A message may be committed later than its due time, so the bound of a claim stays
// lookBehind before the present. Once every fullLook a claim looks fully, without a bound.
const (
	lookBehind = 100 * time.Millisecond
	fullLook   = time.Second
)

// claim claims messages for free slots, starts their handlers, and returns how many slots
// are left and how long the next claim can wait: not at all if more may be due. A claim
// counts the attempt and commits before the handler starts. It is not canceled with ctx:
// a claim that commits unseen would keep its messages until their leases expire.
//
// If we die here: the rows are claimed again when their leases expire. Test:
// TestLease/a_message_of_a_silent_holder_is_taken_over,_and_the_holder_loses_its_whole_commit.
func (r *run) claim(ctx context.Context, slots int) (left int, next time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Policy.Lease)
	defer cancel()
	if r.seldom {
		if slots, err = r.claimSeldom(ctx, slots); err != nil {
			return slots, 0, fmt.Errorf("claim suspected poison messages: %w", err)
		}
	}
	if slots, err = r.claimHeldBack(ctx, slots); err != nil {
		return slots, 0, fmt.Errorf("claim messages that are held back: %w", err)
	}
	if slots, next, err = r.claimDue(ctx, slots); err != nil {
		return slots, 0, fmt.Errorf("claim due messages: %w", err)
	}
	return slots, next, nil
}

// claimSeldom corrects due times and claims suspected poison messages.
func (r *run) claimSeldom(ctx context.Context, slots int) (left int, err error) {
	rows, weight := r.handled()
	p := r.Policy
	b := &pgx.Batch{}
	b.Queue(correctDueTimes, r.Receiver, p.longest(), p.Lease, correctAtMost)
	found := r.queueClaim(b, claimPoison, slots, rows, p.BackoffBase.Seconds(), p.BackoffCap.Seconds(), maxWeight-weight)
	if err := r.DB.Commit(ctx, b); err != nil {
		return slots, err
	}
	r.seldom = false
	return slots - r.startClaimed(ctx, *found), nil
}

// claimHeldBack leaves one slot to what is due. With a single slot they take turns.
func (r *run) claimHeldBack(ctx context.Context, slots int) (left int, err error) {
	n := slots - 1
	if slots == 1 {
		n = rand.IntN(2) //nolint:gosec // it is no secret
	}
	partitions, above, shares := r.slots.heldBackShares(n)
	if len(partitions) == 0 {
		return slots, nil
	}
	b := &pgx.Batch{}
	found := r.queueClaim(b, claimHeldBack, n, partitions, above, shares, r.Policy.DeadLetters == Pass)
	if err := r.DB.Commit(ctx, b); err != nil {
		return slots, err
	}
	for _, d := range *found {
		r.slots.holdBack(d.Partition, d.row)
	}
	return slots - r.startClaimed(ctx, *found), nil
}

// claimDue claims what is due at or after dueFrom, in a full look what is due at any time.
func (r *run) claimDue(ctx context.Context, slots int) (left int, next time.Duration, err error) {
	from, full := r.dueFrom, time.Since(r.lookedAt) >= fullLook //nolint:forbidigo // it decides only how much is read
	if full {
		from = time.Time{}
	}
	rows, _ := r.handled()
	p := r.Policy
	partitions, shares, others := r.slots.shares(slots)
	read := slots
	if slots > 0 && r.slots.holdsBack() { // many of a partition may stand before the others
		read = max(slots, heldBackPage)
	}
	var now time.Time
	var nextDue, firstDue *time.Time
	var seldom bool
	var heldBack []string
	b := &pgx.Batch{}
	found := r.queueClaim(b, claimDue, slots, rows, p.BackoffBase.Seconds(), p.BackoffCap.Seconds(), p.DeadLetters == Pass,
		from, read, partitions, shares, others)
	b.Queue(lookAhead, r.Receiver, from, p.longest(), full).QueryRow(func(row pgx.Row) error {
		return row.Scan(&now, &nextDue, &firstDue, &seldom, &heldBack)
	})
	if err := r.DB.Commit(ctx, b); err != nil {
		return slots, 0, err
	}
	r.dueFrom = now.Add(-lookBehind)
	if firstDue != nil && firstDue.Before(r.dueFrom) {
		r.dueFrom = *firstDue
	}
	next = quietPoll
	if full {
		r.seldom, r.lookedAt = seldom, time.Now() //nolint:forbidigo // as above
		r.slots.setHeldBack(heldBack)
	}
	left = slots - r.startClaimed(ctx, *found)
	switch {
	case len(*found) >= slots:
		return left, 0, nil // more may be due
	case full && (seldom || len(heldBack) > 0):
		next = r.Poll
	case !full || r.slots.holdsBack() || firstDue != nil && !firstDue.After(now):
		// A message may be due that waits for something else than its time, or that a look
		// with a bound has missed.
		next = slowPoll
	}
	if nextDue != nil {
		next = min(next, nextDue.Sub(now))
	}
	return left, next, nil
}

// queueClaim queues a claim of at most n messages, which it returns once the batch is
// committed.
func (r *run) queueClaim(b *pgx.Batch, claim string, n int, its ...any) *[]*Delivery {
	found := new([]*Delivery)
	b.Queue(claim, append([]any{r.Receiver, n, r.Holder, r.Policy.Lease}, its...)...).Query(func(rows pgx.Rows) (err error) {
		*found, err = pgx.CollectRows(rows, scanClaimed)
		return err
	})
	return found
}

// startClaimed starts the handlers of what was claimed, notes what was held back, and
// returns how many slots are used.
func (r *run) startClaimed(ctx context.Context, found []*Delivery) int {
	claimed := slices.DeleteFunc(found, func(d *Delivery) bool {
		if d.heldBack {
			r.slots.holdBack(d.Partition, 0)
		}
		return d.heldBack
	})
	r.slots.assign(claimed)
	r.start(ctx, claimed)
	return len(claimed)
}

func scanClaimed(row pgx.CollectableRow) (*Delivery, error) {
	d := &Delivery{}
	var metadata []byte
	err := row.Scan(&d.heldBack, &d.row, &d.fence, &d.Attempt, &d.deaths, &d.Waits, &d.ID, &d.Type, &d.OrderingKey, &d.Partition,
		&d.Payload, &metadata, &d.claimed)
	if json.Unmarshal(metadata, &d.Metadata) != nil {
		// Another program's, or not strings. The claim commits for all of its rows, so the
		// content of one row must not lose the others.
		d.Metadata = nil
	}
	return d, err
}
