package inbox

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Envelope is what the inbox needs to know of a message beside its id and
// payload. It is read from the message and must not depend on anything else.
type Envelope struct {
	Receivers   []string // who takes it; nobody: the message is passed over
	Type        string
	OrderingKey string // the message's id where empty; see Receive for one that is too long
}

// One total, idempotent statement. A first delivery is inserted; a repeated one
// is counted, also where its rival is yet to commit; a known id with another
// payload goes to quarantine. Nothing of it raises an error beside a rival. It takes
// a page of deliveries in which no receiver has an id twice: PostgreSQL would refuse
// to meet a row again.
//
// A first delivery also wakes the key: the oldest open message, the only one that
// could be claimed, becomes due if it waits for the outside. One that backs off
// after errors does not, so that no flood of messages defeats the backoff.
//
// The oldest is locked also while it runs, and read as it is once it is locked:
// of this delivery and a wait that is written at the same moment, the later one
// can see the other. Nobody holds such a lock for longer than a commit.
//
// A page may find many rows that others end together in one commit. So all that is
// there already is locked first, by number, as they do it: two that take the same
// rows in the same order do not wait for each other. Only then is a key looked at
// again, and the oldest that is still open woken.
//
// The key is compared twice, since of what is equal the order would not matter. So
// only inbox_open_by_key has the order: one entry of it is read, however long the
// queue behind a key is, and none of other keys. Where the planner takes one message
// for all that there are, it would sort that one, out of inbox_due: so that index has
// a condition that nothing here states. What is locked or woken is an
// array, since a join was planned, while the inbox was empty, to read all of it
// later; what was not kept is asked for by "not in", which is a hash whatever is
// planned, and not a look at all of the page for each of it.
//
// A message that is repeated and the oldest of a key with a new one is written once,
// with both changes: of two in one statement PostgreSQL would drop one.
//
// A delivery for which somebody has room ($8 to $10, see Handover) is inserted as he
// would have claimed it, if it is new and nothing of its key is open, or parked where
// that blocks. Of each key and receiver there is at most one such delivery, the
// first. What this look misses, because it is committed at the same moment, the
// unique index on running rows refuses, and the page with it.
const receive = `
with incoming as (
  select d.receiver,
         d.message_id,
         d.ordering_key,
         d.type,
         d.payload,
         d.metadata,
         d.payload_hash,
         d.place,
         d.holder,
         d.lease,
         d.passes,
         (select k.id
            from inbox k
           where k.receiver = d.receiver
             and k.message_id = d.message_id) as known
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::bytea[],
                $8::text[], $9::bigint[], $10::boolean[])
    with ordinality as d (receiver, message_id, ordering_key, type, payload, metadata, payload_hash,
                          holder, lease, passes, place)
), heads as (
  select k.receiver,
         k.ordering_key,
         k.offered,
         k.passes,
         (select open.id
            from inbox open
           where open.receiver = k.receiver
             and open.ordering_key >= k.ordering_key
             and open.ordering_key <= k.ordering_key
             and open.status in ('pending', 'running')
           order by open.ordering_key, open.id
           limit 1) as id
    from (select receiver,
                 ordering_key,
                 min(place) filter (where lease > 0) as offered,
                 bool_or(passes) as passes
            from incoming
           where known is null
           group by receiver, ordering_key) k
), taken as (
  select h.offered as place
    from heads h
   where h.offered is not null
     and h.id is null
     and (h.passes
          or (select parked.id
                from inbox parked
               where parked.receiver = h.receiver
                 and parked.ordering_key >= h.ordering_key
                 and parked.ordering_key <= h.ordering_key
                 and parked.status = 'dead'
               order by parked.ordering_key, parked.id
               limit 1) is null)
), locked as (
  select id
    from inbox
   where id = any (array(
           select known from incoming
            union all
           select id from heads))
   order by id
     for no key update
), oldest as (
  select o.id
    from heads h
   cross join lateral (
           select open.id, open.status, open.attempts, open.waits, open.due_at
             from inbox open
            where open.receiver = h.receiver
              and open.ordering_key >= h.ordering_key
              and open.ordering_key <= h.ordering_key
              and open.status in ('pending', 'running')
              and (select count(*) from locked) >= 0
            order by open.ordering_key, open.id
            limit 1
              for no key update) o
   where h.id is not null
     and o.status = 'pending'
     and o.attempts = 0
     and o.waits > 0
     and o.due_at > clock_timestamp()
), kept as (
  insert into inbox
         (receiver, message_id, ordering_key, type, payload, metadata, payload_hash,
          status, fence, attempts, holder, due_at)
  select receiver, message_id, ordering_key, type, payload, metadata::jsonb, payload_hash,
         case when taken then 'running' else 'pending' end,
         taken::int,
         taken::int,
         case when taken then holder end,
         clock_timestamp() + case when taken then lease else 0 end * interval '1 microsecond'
    from (select receiver, message_id, ordering_key, type, payload, metadata, payload_hash,
                 holder, lease, place, place in (select t.place from taken t) as taken
            from incoming
          offset 0) i
   where (select count(*) from locked) >= 0
     and (select count(*) from oldest) >= 0
   order by place
  on conflict (receiver, message_id) do update
     set duplicates = inbox.duplicates + 1,
         due_at     = case when inbox.id = any (array(select id from oldest)) then clock_timestamp() else inbox.due_at end
   where inbox.payload_hash = excluded.payload_hash
  returning id, receiver, message_id, duplicates, status, received_at, received_in
), woken as (
  update inbox
     set due_at = clock_timestamp()
   where id = any (array(select id from oldest))
     and id not in (select id from kept)
), other as (
  select receiver, message_id, payload, metadata, payload_hash
    from incoming
   where (receiver, message_id) not in (select receiver, message_id from kept)
), aside as (
  insert into inbox_quarantine
         (receiver, message_id, payload, metadata, payload_hash)
  select receiver, message_id, payload, metadata::jsonb, payload_hash
    from other
  on conflict (receiver, message_id, payload_hash) do nothing
)
select count(*) filter (where duplicates = 0) as new,
       count(*) filter (where duplicates > 0) as duplicates,
       (select count(*) from other) as aside,
       json_agg(json_build_object('Row', id, 'Receiver', receiver, 'ID', message_id, 'At', received_at, 'In', received_in))
         filter (where duplicates = 0 and status = 'running') as taken
  from kept`

// Receive takes the messages of a page of the outbox into the inbox. It works in
// the subscriber's own transaction, so that the rows and the offset commit together,
// and does nothing but one statement there, or two where the page has an id more
// than once.
//
// It takes whatever is in the outbox, since what it could not take would block
// the topic for ever. An ordering key beyond MaxLength, or one that is no text,
// is received as "sha256:" and the hexadecimal hash of it; the same messages are
// of one key then as before.
//
// An error leaves the transaction to whoever called, who must roll it back: outbox's
// ByPage does, and the page is read again.
func Receive(envelope func(*message.Message) Envelope) func(page []*message.Message) error {
	return ReceiveTelling(envelope, nil)
}

// ReceiveTelling is Receive that also tells what became of each page, before it
// is committed: of a page that is read again, twice.
func ReceiveTelling(envelope func(*message.Message) Envelope, told func(Reception)) func(page []*message.Message) error {
	return NewHandover().Receive(envelope, told)
}

// deliveriesOf are those of a page, in its order.
func deliveriesOf(page []*message.Message, envelope func(*message.Message) Envelope) ([]delivery, error) {
	all := make([]delivery, 0, len(page))
	for _, m := range page {
		e := envelope(m)
		its, err := deliveries(e.Receivers, Message{
			ID: m.UUID, Type: asText(e.Type), OrderingKey: indexable(e.OrderingKey), Payload: m.Payload, Metadata: m.Metadata,
		})
		if err != nil {
			return nil, err
		}
		all = append(all, its...)
	}
	return all, nil
}

// taken is a row that a page has inserted as claimed.
type taken struct {
	Row          int64
	Receiver, ID string
	At           time.Time
	In           string // the transaction
}

// If we die here: the transaction rolls back, the offset with it, and the page is
// read again. Tests: TestACutPageIsReceivedOnce, and the walk of e2e.
func receivePage(ctx context.Context, tx *sql.Tx, first, again []delivery, offers offers) (r Reception, rows []taken, err error) {
	var list []byte
	if err = tx.QueryRowContext(ctx, receive, received(first, offers)...).Scan(&r.New, &r.Duplicates, &r.Aside, &list); err != nil {
		return r, nil, fmt.Errorf("receive messages: %w", err)
	}
	if list != nil {
		if err := json.Unmarshal(list, &rows); err != nil {
			return r, nil, fmt.Errorf("receive messages: read what was taken: %w", err)
		}
	}
	if len(again) > 0 {
		var more Reception
		if err := tx.QueryRowContext(ctx, repeat, repeated(again)...).Scan(&more.New, &more.Duplicates, &more.Aside); err != nil {
			return r, nil, fmt.Errorf("receive messages: %w", err)
		}
		r.Duplicates, r.Aside = r.Duplicates+more.Duplicates, r.Aside+more.Aside
	}
	return r, rows, nil
}

// indexable is an ordering key that the inbox can hold, one for each that there is.
func indexable(key string) string {
	if len(key) <= MaxLength && isText(key) {
		return key
	}
	hash := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(hash[:])
}
