package inbox

import (
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

const repairShare = 20 // of the server's time, about one part is for repairs

// correctDueTimes makes due what was written while the clock of the database was ahead: no pause is longer than
// $2, of messages that have waited at most $3 times for an external service.
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
            and waits <= $3
          order by due_at
          limit 1000
            for update skip locked))`

// promoteStranded promotes the oldest messages of keys without a first one. It looks at 2000 of those that wait, behind
// the key $2, so that their number holds up no claim, and passes over rows that are locked. It returns the last of
// the keys, or the empty key where none is left, and how long the repair has taken.
const promoteStranded = `
-- inbox.promoteStranded
with waiting as materialized (
  select receiver, ordering_key
    from inbox
   where receiver = $1
     and status = 'pending'
     and not first
     and ordering_key > $2
   order by ordering_key
   limit 2000
), promoted as (
  update inbox
     set first  = true,
         due_at = greatest(due_at, now())
   where id = any (array(
           select id
             from inbox
            where id = any (array(
                    select ` + oldestBehind + `
                      from (select distinct receiver, ordering_key from waiting) k
                     where ` + firstOf + ` is null))
              and status = 'pending'
              and not first
            order by id
              for update skip locked))
  returning id
)
select case when count(*) = 2000 then max(ordering_key) else '' end, clock_timestamp() - now()
  from waiting
 where (select count(*) from promoted) is not null` // which is computed before

// queueRepair queues what mends the rows that others left: messages of silent holders, claims and ends
// with an unknown outcome, and, in a whole repair, due times of a wrong clock and keys without a first message.
//
// If we die here: the repair of another processor finds them. Test: TestModel.
func (p *Processor) queueRepair(b *pgx.Batch, whole bool) {
	b.Queue("-- inbox.setLockTimeout\nselect set_config('lock_timeout', '100ms', true)")
	p.queueTakeOver(b)
	if !whole {
		p.repairTook = 0
		return
	}
	b.Queue(correctDueTimes, p.Receiver, p.Policy.BackoffCap, 0)
	b.Queue(correctDueTimes, p.Receiver, max(LongestWait, p.Policy.BackoffCap), math.MaxInt32)
	b.Queue(promoteStranded, p.Receiver, p.repairedKey).QueryRow(func(row pgx.Row) error {
		return row.Scan(&p.repairedKey, &p.repairTook)
	})
}

// endRepair says when the next repair is due: sooner while keys are left, else after whole seconds, since the loop
// polls each second anyway. After a whole repair that failed, the next one is the takeover alone.
func (p *Processor) endRepair(ended time.Time, took time.Duration, err error) {
	if err != nil {
		p.repairTook, p.repairedKey = took, ""
	}
	pause := repairShare * p.repairTook
	if p.repairedKey == "" {
		pause = max(pause.Round(pollEvery), pollEvery)
	}
	p.repairRefused = err != nil && !p.repairRefused
	p.repairsAt = ended.Add(pause)
}
