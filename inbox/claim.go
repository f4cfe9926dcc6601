package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A claim takes messages for a holder: of each ordering key the oldest open one, and none
// while another one of the key runs. There are three statements: for what is due, for
// poison messages, and for what is held back. The index inbox_one_running_per_key refuses
// whatever they miss.
//
// The plans of these statements are kept, so they must be right for a table of any size
// and content. Index scans alone and "offset 0" leave one way: each subquery is a probe of one
// key. The order, with the key compared as a range, exists in the indexes of keys alone
// (see lockOldest). A claim reads each message that waits behind another one of its key,
// so senders should bound how many there are.

// claimDue claims pending messages whose time has come and running ones whose lease has
// expired. A message whose holder went silent waits a little longer than its lease, a
// part of the backoff that its id and fence select: if a message kills every process that
// takes it, the messages that ran beside it are soon claimed without it.
//
// A message for which its partition has no room ($11, $12; $10 for the other ones) is
// held back. While messages are held back, many more of their partition may be due before
// those of others: so $13 messages are read, and $2 of those that fit are claimed.
//
// The messages that this holder still handles ($6) are left out: if a lease has expired,
// the next heartbeat renews it, unless another holder was faster. No open message is due
// before $9 (see lookAhead). now() is slightly earlier than clock_timestamp() and, unlike
// it, can bound an index scan.
const claimDue = `
with due as (
  select i.id,
         i.partition_key,
         i.status,
         i.due_at
    from inbox i
   where i.receiver = $1
     and i.status in ('pending', 'running')
     and i.due_at >= $9
     and i.due_at <= now()
     and i.id <> all($6::bigint[])
     and case i.status
           when 'running' then i.deaths < 2
                           and i.due_at + (hashint8(i.id # i.fence) & 1023) / 1024.0
                                        * least($8::interval, $7::interval * power(2, i.deaths)) <= now()
           else ` + isFirstOfKey + `
         end
   order by i.due_at
   limit $13
     for update skip locked
), shared as (
  select due.id,
         due.due_at,
         due.status = 'running'
         or due.partition_key = ''
         or row_number() over (partition by due.partition_key order by due.due_at, due.id) <= coalesce(room.n, $10) as fits
    from due
    left join unnest($11::text[], $12::int[]) as room (partition_key, n)
      on room.partition_key = due.partition_key
), found as (
  select id,
         fits
    from (select id,
                 fits,
                 count(*) filter (where fits) over (order by due_at, id) as place
            from shared) s
   where not fits
      or place <= $2` + claimFound

// claimPoison claims suspected poison messages whose lease has expired, separately from
// the others, and no more of them than their weights allow ($8; see suspicion). They run
// already, so no key blocks them. Coalesced, the comparison of their time leads to
// inbox_suspects alone: without statistics the planner would read all that is due.
const claimPoison = `
with suspects as (
  select i.id,
         i.due_at,
         least(32, power(2, i.deaths - 2)) as weight
    from inbox i
   where i.receiver = $1
     and i.status = 'running'
     and i.deaths >= 2
     and i.id <> all($5::bigint[])
     and coalesce(i.due_at + (hashint8(i.id # i.fence) & 1023) / 1024.0
                           * least($7::interval, $6::interval * power(2, least(i.deaths, $9::int))) <= now(), false)
   order by i.due_at
   limit least($2::bigint, $8::bigint)
     for update skip locked
), found as (
  select s.id,
         true as fits
    from (select id,
                 sum(weight) over (order by due_at, id) as total
            from suspects) s
   where s.total <= $8::bigint` + claimFound

// isFirstOfKey holds for a pending message i that no message of its key blocks. A dead
// letter blocks it unless $5.
const isFirstOfKey = `not exists (
           select
             from inbox running
            where running.receiver = i.receiver
              and running.ordering_key = i.ordering_key
              and running.status = 'running'
           offset 0)
     and not exists (
           select
             from inbox older
            where older.receiver = i.receiver
              and older.ordering_key >= i.ordering_key
              and older.ordering_key <= i.ordering_key
              and older.status in ('pending', 'running')
              and older.id < i.id
            order by older.ordering_key, older.id
           offset 0)
     and ($5 or not exists (
           select
             from inbox dead
            where dead.receiver = i.receiver
              and dead.ordering_key >= i.ordering_key
              and dead.ordering_key <= i.ordering_key
              and dead.status = 'dead'
              and dead.id < i.id
            order by dead.ordering_key, dead.id
           offset 0))`

// claimFound claims what was found, for holder $3 with lease $4, and holds back what does
// not fit. The arrays keep it a probe of each row; a join was planned to read the table.
const claimFound = `
)
update inbox i
   set status   = case when i.id = any (f.fitting) then 'running' else 'pending' end,
       fence    = i.fence + (i.id = any (f.fitting))::int,
       attempts = i.attempts + (i.id = any (f.fitting))::int,
       deaths   = case i.status when 'running' then i.deaths + 1 else 0 end,
       holder   = case when i.id = any (f.fitting) then $3 else i.holder end,
       due_at   = case when i.id = any (f.fitting) then clock_timestamp() + $4::interval end
  from (select array(select id from found where fits) as fitting) f
 where i.id = any (array(select id from found))
returning i.status = 'running' as fits,
          i.id,
          i.fence,
          i.attempts,
          i.deaths,
          i.waits,
          i.message_id,
          i.type,
          i.ordering_key,
          i.partition_key,
          i.payload,
          i.metadata,
          clock_timestamp() as claimed`

// lookAhead is read after a claim, in its transaction. It returns the present, when the next
// message becomes due that is not due yet, the first due time at or after $2, and, after a
// full look ($3), whether there is anything for claimSeldom.
//
// The first due time bounds the next claim. While a transaction holds an old snapshot,
// PostgreSQL keeps the dead entries of inbox_due, which stand before the live ones: without
// a bound each claim would read all of them. So would each claim of the dead entries of
// inbox_suspects and inbox_held_back, which have no bound.
const lookAhead = `
select now(),
       (select due_at
          from inbox
         where receiver = $1
           and status in ('pending', 'running')
           and due_at is not null
           and due_at > now()
         order by due_at
         limit 1),
       (select due_at
          from inbox
         where receiver = $1
           and status in ('pending', 'running')
           and due_at is not null
           and due_at >= $2
         order by due_at
         limit 1),
       $3 and (
         exists (
           select
             from inbox
            where receiver = $1
              and status = 'running'
              and deaths >= 2
           offset 0)
         or exists (
           select
             from inbox
            where receiver = $1
              and status = 'pending'
              and due_at is null
           offset 0))`

// A message may be committed later than its due time, so the bound of a claim stays
// lookBehind before the present, and once every fullLook a claim has no bound: it looks fully.
const (
	lookBehind = 100 * time.Millisecond
	fullLook   = time.Second
)

// ahead is what lookAhead returned.
type ahead struct {
	now       time.Time
	next      *time.Time // when a message becomes due
	first     *time.Time // the first due time
	full      bool       // it had no bound
	forSeldom bool       // suspected poison messages, or messages that are held back
}

// from is a time before which no message is due.
func (a ahead) from() time.Time {
	from := a.now.Add(-lookBehind)
	if a.first != nil && a.first.Before(from) {
		return *a.first
	}
	return from
}

// rest is how long the next claim can wait for nothing but due times. A message that is due
// and was not claimed waits for something that no due time tells of, and a look with a bound
// may have missed one.
func (a ahead) rest() time.Duration {
	longest := quietPoll
	if !a.full || a.forSeldom || a.first != nil && !a.first.After(a.now) {
		longest = slowPoll
	}
	if a.next != nil {
		return min(longest, a.next.Sub(a.now))
	}
	return longest
}

// claimed is a delivery with what its handler need not know.
type claimed struct {
	Delivery

	fits      bool // false: it was held back
	deaths    int  // holders in a row that died before this one
	onReceipt bool // claimed by the page that brought it
}

// suspicion is how many deaths in a row make a suspected poison message: a message that
// kills its process dies with every holder, one that runs beside it dies with some.
// Deaths are counted apart from attempts, and forgotten as soon as a handler returns.
// With every further death half as many suspects are tried at a time; from the eighth on
// one is tried without another suspect. So a poison message takes no other message with
// it more than eight times. claimDue, claimPoison and the index inbox_suspects see a row
// before its next claim, hence one less.
const suspicion = 3

// maxWeight bounds the weights of the suspects that one process tries at a time.
const maxWeight = 32

func (c claimed) suspect() bool { return c.deaths >= suspicion }

// weight is 1 for a new suspect and doubles with each death.
func (c claimed) weight() int {
	if !c.suspect() {
		return 0
	}
	return min(maxWeight, 1<<min(c.deaths-suspicion, 16))
}

// claim claims at most n messages, for which slots are taken, and commits before a
// handler starts. It also returns how long the next claim can wait. The attempt is counted
// in the claim, so a holder that dies has been counted and what its handler rolls back has
// not. With an error it returns what was claimed before it.
//
// The claim is not canceled with ctx: a claim that commits unseen would keep its messages
// until their leases expire.
//
// If we die here: the rows are claimed again when their leases expire. Test:
// TestLease/a_message_of_a_silent_holder_is_taken_over….
func (r *run) claim(ctx context.Context, n int) (messages []claimed, next time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Policy.Lease)
	defer cancel()
	rows, weight := r.handled()
	p, from := r.Policy, r.dueFrom
	full := time.Since(r.lookedAt) >= fullLook //nolint:forbidigo // it decides only how much is read
	if full {
		from = time.Time{}
	}
	if full && (r.forSeldom || r.holdsBack()) {
		if err := r.claimSeldom(ctx, &messages, n, rows, maxWeight-weight); err != nil {
			return messages, 0, err
		}
	}
	r.dueNext = !r.dueNext
	heldBack := n - 1 // one slot is left to what is due
	if n == 1 && !r.dueNext {
		heldBack = 1
	}
	if err := r.claimHeldBack(ctx, &messages, heldBack); err != nil {
		return messages, 0, err
	}
	b := &pgx.Batch{}
	partitions, rooms, others := r.slots.room(n, messages)
	left := n - len(messages)
	read := left
	if left > 0 && r.holdsBack() { // many of a partition may stand before the others
		read = max(left, heldBackPage)
	}
	r.queueClaim(b, &messages, claimDue, left, p.Parked == Pass, rows, p.BackoffBase, p.BackoffCap, from, others, partitions, rooms, read)
	look := ahead{full: full}
	b.Queue(lookAhead, r.Receiver, from, full).QueryRow(func(row pgx.Row) error {
		return row.Scan(&look.now, &look.next, &look.first, &look.forSeldom)
	})
	before := messages
	if err := r.DB.Commit(ctx, b); err != nil {
		return before, 0, fmt.Errorf("claim messages of %s: %w", r.Receiver, err)
	}
	if full {
		r.lookedAt, r.forSeldom = time.Now(), look.forSeldom //nolint:forbidigo // as above
	}
	r.dueFrom = look.from()
	return messages, look.rest(), nil
}

// queueClaim queues a claim of at most n messages, which it appends to messages.
func (r *run) queueClaim(b *pgx.Batch, messages *[]claimed, claim string, n int, its ...any) {
	args := append([]any{r.Receiver, n, r.Holder, r.Policy.Lease}, its...)
	b.Queue(claim, args...).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, scanClaimed)
		*messages = append(*messages, found...)
		return err
	})
}

// claimSeldom does what few full looks have to do besides: it claims suspected poison messages and
// reads of which partitions messages are held back.
func (r *run) claimSeldom(ctx context.Context, messages *[]claimed, n int, handled []int64, weight int) error {
	p := r.Policy
	var partitions []string
	b := &pgx.Batch{}
	r.queueClaim(b, messages, claimPoison, n, handled, p.BackoffBase, p.BackoffCap, weight, p.doublings())
	b.Queue(heldBackPartitions, r.Receiver).Query(func(rows pgx.Rows) (err error) {
		partitions, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err := r.DB.Commit(ctx, b); err != nil {
		*messages = nil
		return fmt.Errorf("claim suspected poison messages of %s: %w", r.Receiver, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heldBack = make(map[string]int64, len(partitions))
	for _, partition := range partitions {
		r.heldBack[partition] = 0
	}
	return nil
}

func scanClaimed(row pgx.CollectableRow) (claimed, error) {
	var c claimed
	var metadata []byte
	err := row.Scan(&c.fits, &c.row, &c.fence, &c.Attempt, &c.deaths, &c.Waits, &c.ID, &c.Type, &c.OrderingKey, &c.Partition,
		&c.Payload, &metadata, &c.claimed)
	if json.Unmarshal(metadata, &c.Metadata) != nil {
		// Another program's, or not strings. The claim commits for all of its rows, so the
		// content of one row must not lose the others.
		c.Metadata = nil
	}
	return c, err
}
