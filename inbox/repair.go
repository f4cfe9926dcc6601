package inbox

import (
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	repairEvery = time.Second
	repairShare = 20 // of the time, at most one part is for repairs

	deathsPerAttempt = 4 // so many deaths count as much as an attempt
)

// correctDueTimes makes due what was written while the clock of the database was ahead: no
// pause is longer than a backoff, or than LongestWait after a wait.
const correctDueTimes = `
-- inbox.correctDueTimes
update inbox
   set due_at = clock_timestamp()
 where id = any (array(
         select id
           from inbox
          where receiver = $1
            and status = 'pending'
            and first
            and due_at > now() + $2::interval
            and (waits = 0 or due_at > now() + $3::interval)
          order by due_at
          limit 1000
            for update skip locked))`

// promoteStranded looks at the keys of at most 2000 waiting messages behind the key $2, and
// makes the oldest message first of each key that has none, unless it is locked. It returns the last of
// all these keys, or the empty key where none is left. So the number of waiting messages holds up no
// claim.
const promoteStranded = `
-- inbox.promoteStranded
with waiting as materialized (
  select ordering_key
    from inbox
   where receiver = $1
     and status = 'pending'
     and not first
     and ordering_key > $2
   order by ordering_key
   limit 2000
), oldest as (
  select (select b.id from inbox b
           where b.receiver = $1 and b.ordering_key >= k.ordering_key and b.ordering_key <= k.ordering_key and b.status = 'pending' and not b.first
           order by b.ordering_key, b.id
           limit 1) as id
    from (select distinct ordering_key from waiting) k
   where (select f.id from inbox f where f.receiver = $1 and f.ordering_key = k.ordering_key and f.first) is null
), free as (
  select id
    from inbox
   where id = any (array(select id from oldest))
     for update skip locked
), promoted as (
  update inbox
     set first  = true,
         due_at = greatest(due_at, now())
   where id = any (array(select id from free))
     and coalesce(status = 'pending' and not first, false)
)
select case when count(*) = 2000 then max(ordering_key) else '' end from waiting`

// queueRepair queues what mends the rows that others left: messages of silent holders, claims and ends
// with an unknown outcome, due times of a wrong clock, and keys without a first message, of which each
// repair looks at a part.
//
// If we die here: the repair of another processor finds them. Test: TestModel.
func (p *Processor) queueRepair(b *pgx.Batch) {
	q := p.Policy
	if time.Now().After(p.patientUntil) { //nolint:forbidigo // it decides only when others are taken over
		b.Queue(forget, p.Receiver, q.Lease)
		b.Queue(takeOver, p.Receiver, deathsPerAttempt*q.MaxAttempts, q.DeadLetters == Pass,
			q.BackoffBase, q.BackoffCap, p.Holder, column(p.held(), rowOf), 2*p.timeout())
	}
	b.Queue(correctDueTimes, p.Receiver, q.BackoffCap, max(LongestWait, q.BackoffCap))
	b.Queue(promoteStranded, p.Receiver, p.repairedKey).QueryRow(func(row pgx.Row) error { return row.Scan(&p.repairedKey) })
}
