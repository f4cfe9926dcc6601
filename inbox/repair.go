package inbox

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	repairEvery = time.Second
	repairShare = 20 // of the time, at most one part is for repairs
	promoteTime = 50 * time.Millisecond
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

// readStranded reads which keys of at most 2000 waiting messages behind the key $2 have no first
// message, and the last of all these keys, or the empty key where none is left. So the number of
// waiting messages holds up no claim.
const readStranded = `
-- inbox.readStranded
with waiting as materialized (
  select ordering_key
    from inbox
   where receiver = $1
     and status = 'pending'
     and not first
     and ordering_key > $2
   order by ordering_key
   limit 2000
)
select array(
         select k.ordering_key
           from (select distinct ordering_key from waiting) k
          where (select f.id from inbox f where f.receiver = $1 and f.ordering_key = k.ordering_key and f.first) is null),
       (select case when count(*) = 2000 then max(ordering_key) else '' end from waiting)`

// queueRepair queues what mends the rows that others left: messages of silent holders, claims and ends
// with an unknown outcome, and due times of a wrong clock. It reads a part of the keys, behind that of
// the repair before, for those without a first message.
//
// If we die here: the repair of another processor finds them. Test: TestModel.
func (p *Processor) queueRepair(b *pgx.Batch) {
	p.queueTakeOver(b)
	b.Queue(correctDueTimes, p.Receiver, p.Policy.BackoffCap, max(LongestWait, p.Policy.BackoffCap))
	if len(p.stranded) == 0 {
		b.Queue(readStranded, p.Receiver, p.repairedKey).QueryRow(func(row pgx.Row) error {
			var keys []string
			err := row.Scan(&keys, &p.repairedKey)
			if len(keys) > 0 {
				p.stranded = append(p.stranded, keys)
			}
			return err
		})
	}
}

// promoteStranded repairs keys, each set of them in a transaction of its own, and in two halves where
// one of them is locked. What is left after a short time waits for the next tick, and a key that
// cannot be repaired is found again.
//
// If we die here: the repair of another processor finds the keys. Test: TestModel.
func (p *Processor) promoteStranded(ctx context.Context) {
	for began := time.Now(); len(p.stranded) > 0 && time.Since(began) < promoteTime; { //nolint:forbidigo // it decides only when claims go on
		keys := p.stranded[0]
		p.stranded = p.stranded[1:]
		b := &pgx.Batch{}
		b.Queue(`-- inbox.promoteStranded
select set_config('lock_timeout', '1ms', true)`)
		b.Queue(promoteMany, slices.Repeat([]string{p.Receiver}, len(keys)), keys)
		if half := len(keys) / 2; p.DB.Commit(ctx, b) != nil && half > 0 {
			p.stranded = append(p.stranded, keys[:half], keys[half:])
		}
	}
}
