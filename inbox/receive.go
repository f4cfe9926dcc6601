package inbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
)

// Reception is what became of messages that were received.
type Reception struct{ New, Duplicates, DeadLetters int }

// MaxLength is the longest receiver, id, type, ordering key and partition, in bytes: indexes
// hold them.
const MaxLength = 255

var (
	errNotStorable  = errors.New("the message has no id, or its id, type, key or partition is longer than 255 bytes or no text")
	errOtherPayload = errors.New("the id is known with another payload")
)

// store inserts a first delivery, as the first of its key where the key has none, and counts a
// repeated one. Another payload under a known id is not returned. None of this raises an error
// when another transaction commits the same message. An exists would be hashed: the planner would
// read all that is first. Keys are inserted in their order, so that
// pages which meet in several keys do not deadlock.
//
// Where a new message came behind another one, that one is told: it is due now if it waits for
// an external service, since that may be what it waits for, and is not delayed when its holder
// ends it with a wait. The lock keeps it from ending before this transaction: its end then sees
// what came behind it. A repeated delivery tells nothing.
//
// storePage also claims for holder $10 at most $11 messages that are first, none of the
// partitions $12, and at most $13 of another one: they are stored as a claim would leave them.
var (
	store     = storeSQL(`(values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::bytea, $7::text, $8::bytea, $9::text, 1))`, `false`, `null::text`)
	storeMany = storeSQL(storeArrays, `false`, `null::text`)
	storePage = storeSQL(storeArrays, `
         d.first
         and d.partition_key <> all ($12::text[])
         and count(*) filter (where d.first and d.partition_key <> all ($12::text[])) over (order by d.place) <= $11
         and (d.partition_key = '' or count(*) filter (where d.first) over (partition by d.partition_key order by d.place) <= $13)`, `$10::text`)
)

const storeArrays = `unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::bytea[], $9::text[]) with ordinality`

func storeSQL(source, starts, holder string) string {
	return `
with incoming as (
  select d.*,
         d.unreadable = ''
         and row_number() over (partition by d.receiver, d.ordering_key order by d.place) = 1
         and (select f.id from inbox f where f.receiver = d.receiver and f.ordering_key = d.ordering_key and f.first) is null as first
    from ` + source + ` as d (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, unreadable, place)
), kept as (
  insert into inbox
         (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, last_error, first,
          status, fence, attempts, holder, claimed_at)
  select receiver, message_id, ordering_key, partition_key, type, payload, metadata::jsonb, payload_hash, nullif(unreadable, ''), first,
         case when unreadable <> '' then 'dead' when starts then 'running' else 'pending' end,
         starts::int, starts::int, case when starts then ` + holder + ` end, case when starts then clock_timestamp() end
    from (select d.*, ` + starts + ` as starts from incoming d) d
   order by ordering_key, place
  on conflict (message_id, receiver) do update
     set duplicates    = inbox.duplicates + 1,
         duplicated_at = clock_timestamp()
   where inbox.payload_hash = excluded.payload_hash
  returning id, receiver, message_id, ordering_key, first, status, duplicates = 0 as new, claimed_at
), heads as (
  select id
    from inbox
   where id = any (array(
           select (select id from inbox where receiver = kept.receiver and ordering_key = kept.ordering_key and first)
             from kept
            where new and not first and status = 'pending'))
   order by id
     for no key update
), nudge as (
  update inbox
     set nudged = true,
         due_at = case when status = 'pending' and attempts = 0 and waits > 0 then least(due_at, clock_timestamp()) else due_at end
   where id = any (array(select id from heads))
     and first
)
select id, message_id, new, new and not first and status = 'pending' as behind, new and status = 'running' as started, coalesce(claimed_at, now())
  from kept`
}

// promote makes the oldest message of a key first if the key has none. Each transaction that
// stores or ends messages runs it last, and a processor from time to time for its whole
// receiver: two such transactions that did not see each other may leave a key without one.
const (
	promote     = promoteKeys + `(values ($1::text, $2::text)) as k (receiver, ordering_key)` + keysWithoutFirst
	promoteMany = promoteKeys + `unnest($1::text[], $2::text[]) as k (receiver, ordering_key)` + keysWithoutFirst
	promoteAll  = promoteKeys + `(select distinct receiver, ordering_key from inbox where receiver = $1 and status = 'pending' and not first) as k` + keysWithoutFirst

	promoteKeys = `
update inbox
   set first  = true,
       due_at = greatest(due_at, now())
 where id = any (array(
         select (select b.id from inbox b
                  where b.receiver = k.receiver and b.ordering_key = k.ordering_key and b.status = 'pending' and not b.first
                  order by b.id
                  limit 1)
           from `
	keysWithoutFirst = `
          where (select f.id from inbox f where f.receiver = k.receiver and f.ordering_key = k.ordering_key and f.first) is null))
   and status = 'pending'
   and not first`
)

// incoming is a message that is received.
type incoming struct {
	Message

	metadata   string
	hash       []byte
	unreadable string // why it is stored as a dead letter
	kept, new  bool   // once it is stored
}

// received returns a message in a form that can be stored: as a dead letter, named by its
// payload, where there is an error.
func received(m Message, err error) *incoming {
	hash := sha256.Sum256(m.Payload)
	for _, text := range []string{m.ID, m.OrderingKey, m.Partition, m.Type} {
		if m.ID == "" || len(text) > MaxLength || !utf8.ValidString(text) || strings.Contains(text, "\x00") {
			err = cmp.Or(err, errNotStorable)
		}
	}
	d := &incoming{Message: m, hash: hash[:]}
	if err != nil {
		d.unreadable = cmp.Or(storable(err.Error()), "unreadable")
		d.ID = "unreadable:" + hex.EncodeToString(d.hash)
		d.OrderingKey, d.Partition, d.Type = "", "", ""
	}
	d.OrderingKey = cmp.Or(d.OrderingKey, d.ID)
	d.Payload = append([]byte{}, m.Payload...) // an empty message, not a missing one
	metadata, _ := json.Marshal(m.Metadata)    // texts have no error
	d.metadata = strings.ReplaceAll(string(metadata), `\u0000`, "")
	if m.Metadata == nil {
		d.metadata = "{}"
	}
	return d
}

// Append queues a message into the batch that causes it, in the database of the inbox: it is
// received exactly if the batch is committed, and once, however often. It does no I/O.
//
// A processor claims it when it is woken (Receivers says which), or within a second.
func Append(b *pgx.Batch, receiver string, m Message) {
	d := received(m, nil)
	b.Queue(store, receiver, d.ID, d.OrderingKey, d.Partition, d.Type, d.Payload, d.metadata, d.hash, d.unreadable)
	b.Queue(promote, receiver, d.OrderingKey)
}

// Receivers returns the receivers of what was appended to a batch: once it is committed, they
// have work.
func Receivers(b *pgx.Batch) (receivers []string) {
	for _, q := range b.QueuedQueries {
		if q.SQL != store {
			continue
		}
		if receiver, _ := q.Arguments[0].(string); !slices.Contains(receivers, receiver) {
			receivers = append(receivers, receiver)
		}
	}
	return receivers
}

// Receive stores messages in a transaction of its own, and claims for the free slots in it.
// When it returns nil they are durable, and the caller acknowledges them to their transport.
// After an error none is stored, or the outcome is unknown: the transport delivers them again.
//
// A message that cannot be stored as it is, or that has another payload than the one under
// its id, is stored as a dead letter.
//
// If we die here: before the commit nothing is stored, and after it nothing is acknowledged.
// What was claimed and did not start is taken over.
func (p *Processor) Receive(ctx context.Context, messages ...Message) (Reception, error) {
	page := make([]*incoming, len(messages))
	for n, m := range messages {
		page[n] = received(m, nil)
	}
	return p.receive(ctx, page)
}

// receive stores a page: each id once, then what repeats an id of the page, or has another payload.
func (p *Processor) receive(ctx context.Context, page []*incoming) (r Reception, err error) {
	for err == nil && len(page) > 0 {
		page, err = p.storeOnce(ctx, page, &r)
	}
	if p.OnReceive != nil && err == nil {
		p.OnReceive(r)
	}
	return r, err
}

const maxTries = 3

// storeOnce stores the first message of each id, and returns what is left to store.
func (p *Processor) storeOnce(ctx context.Context, page []*incoming, r *Reception) (rest []*incoming, err error) {
	byID, once := map[string]*incoming{}, page[:0:0]
	for _, d := range page {
		if byID[d.ID] != nil {
			rest = append(rest, d)
			continue
		}
		byID[d.ID], once = d, append(once, d)
	}
	for range maxTries {
		if err = p.storeStart(ctx, once, byID); groupcommit.Constraint(err) != onePerKey && !groupcommit.OutcomeOf(err).Retryable() {
			break // else another transaction was first
		}
	}
	if err != nil {
		return nil, fmt.Errorf("receive %d messages for %s: %w", len(page), p.Receiver, err)
	}
	for _, d := range once {
		switch {
		case !d.kept:
			rest = append(rest, received(d.Message, errOtherPayload))
		case !d.new:
			r.Duplicates++
		case d.unreadable != "":
			r.DeadLetters++
			p.Log.ErrorContext(ctx, "message cannot be read: it is a dead letter", "receiver", p.Receiver, "message_id", d.ID, "reason", d.unreadable)
		default:
			r.New++
		}
	}
	return rest, nil
}

const onePerKey = "inbox_one_first_per_key"

// storeStart is one transaction: it stores a page, and claims for the free slots, unless older
// messages wait for them.
func (p *Processor) storeStart(ctx context.Context, page []*incoming, byID map[string]*incoming) error {
	n, share, full := 0, 0, []string{}
	if !p.crowded.Load() {
		n, share, full, _ = p.slots.take(len(page))
	}
	var started []*Delivery
	defer func() { p.slots.give(n, started); p.start(ctx, started) }()
	var behind []string // keys
	waits := false
	b := &pgx.Batch{}
	b.Queue(storePage, column(page, func(*incoming) string { return p.Receiver }),
		column(page, func(d *incoming) string { return d.ID }),
		column(page, func(d *incoming) string { return d.OrderingKey }),
		column(page, func(d *incoming) string { return d.Partition }),
		column(page, func(d *incoming) string { return d.Type }),
		column(page, func(d *incoming) []byte { return d.Payload }),
		column(page, func(d *incoming) string { return d.metadata }),
		column(page, func(d *incoming) []byte { return d.hash }),
		column(page, func(d *incoming) string { return d.unreadable }),
		p.Holder, n, append([]string{}, full...), share,
	).Query(func(rows pgx.Rows) error {
		var id string
		var isNew, isBehind, starts bool
		d := Delivery{receiver: p.Receiver, fence: 1, Attempt: 1}
		started, behind = nil, nil
		_, err := pgx.ForEachRow(rows, []any{&d.row, &id, &isNew, &isBehind, &starts, &d.ClaimedAt}, func() error {
			m := byID[id]
			m.kept, m.new = true, isNew
			switch {
			case starts:
				own := d
				own.Message = m.Message
				started = append(started, &own)
			case isBehind:
				behind = append(behind, m.OrderingKey)
			default:
				waits = waits || isNew
			}
			return nil
		})
		return err
	})
	if err := p.DB.Commit(ctx, b); err != nil {
		started = nil
		return err
	}
	if waits {
		p.wake()
	}
	if len(behind) > 0 { // the one before may have ended without seeing what came behind it
		p.behind.Add(1)
		b = &pgx.Batch{}
		b.Queue(promoteMany, slices.Repeat([]string{p.Receiver}, len(behind)), behind)
		if err := p.DB.Commit(ctx, b); err != nil {
			p.Log.DebugContext(ctx, "the next messages of some keys are found later", "receiver", p.Receiver, "error", err)
		}
		p.wake()
	}
	return nil
}

func column[T any](page []*incoming, of func(*incoming) T) []T {
	values := make([]T, len(page))
	for i, d := range page {
		values[i] = of(d)
	}
	return values
}

// DeleteExpired deletes up to limit messages that were done longer than retention ago, in
// database time, and returns how many; below limit, nothing was left. Retention is longer than
// the transport can redeliver. Dead letters and discarded messages stay. Several callers may
// call it concurrently.
func DeleteExpired(ctx context.Context, db groupcommit.DB, retention time.Duration, limit int) (int, error) {
	var deleted int64
	b := &pgx.Batch{}
	b.Queue(`
delete from inbox
 where ctid = any (array(
         select ctid
           from inbox
          where status = 'done'
            and finished_at < now() - $1::interval
          order by finished_at
          limit $2
            for update skip locked))`, retention, limit).Exec(func(tag pgconn.CommandTag) error {
		deleted = tag.RowsAffected()
		return nil
	})
	if err := db.Commit(ctx, b); err != nil {
		return 0, fmt.Errorf("delete done messages: %w", err)
	}
	return int(deleted), nil
}
