// Package deadletter is what operators do with dead letters of an inbox: list, show, retry, discard. Show
// reads any message. That a decision has a name rests on the check inbox_decision_has_actor.
//
// Table: inbox, which inbox.Schema creates.
package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

// Status is where a message stands.
type Status string

// What a message can be. Only the operators' functions move it out of StatusDead.
const (
	StatusPending   Status = "pending"   // due, or waiting for its time
	StatusRunning   Status = "running"   // claimed by a holder, which may have died since
	StatusDone      Status = "done"      // for ever
	StatusDead      Status = "dead"      // until an operator decides
	StatusDiscarded Status = "discarded" // an operator ended it undone
)

var (
	// ErrNoMessage is returned by Show, Retry and Discard for a number that no
	// message has.
	ErrNoMessage = errors.New("no such message")
	// ErrNotDeadLetter is returned by Retry and Discard for a message that is no dead letter,
	// or no more: another operator may have decided.
	ErrNotDeadLetter = errors.New("the message is not a dead letter")
)

// Entry is a message as it lies in the inbox. Times are the database's, in UTC. As
// JSON it is what operators are shown, without what the sender wrote.
type Entry struct {
	Number      int64      `json:"id"` // names the message for Show, Retry and Discard
	Receiver    string     `json:"receiver"`
	MessageID   string     `json:"message_id"`
	Type        string     `json:"type"`
	OrderingKey string     `json:"ordering_key"`
	Status      Status     `json:"status"`
	Attempts    int        `json:"attempts"`
	Deaths      int        `json:"deaths"` // of holders in a row
	Waits       int        `json:"waits"`
	Duplicates  int        `json:"duplicates"` // deliveries beyond the first
	Holder      string     `json:"holder"`
	LastError   string     `json:"last_error"`
	DecidedBy   string     `json:"decided_by"` // the operator who last retried or discarded it; empty if none
	ReceivedAt  time.Time  `json:"received_at"`
	DueAt       time.Time  `json:"due_at"`
	FinishedAt  *time.Time `json:"finished_at"` // nil while it is open
	DecidedAt   *time.Time `json:"decided_at"`  // nil while no operator has decided
	Behind      int        `json:"behind"`      // younger open messages of its key, held up if it is dead and DeadLetters is inbox.Block

	// What the sender wrote, which Show alone reads.
	Payload  []byte          `json:"-"`
	Metadata json.RawMessage `json:"-"`
}

// entryColumns are what List and Show read of a message i. The sum keeps its condition out of
// the primary key.
const entryColumns = `i.id as number, i.receiver, i.message_id, i.type, i.ordering_key, i.status,
       i.attempts, i.deaths, i.waits, i.duplicates,
       coalesce(i.holder, '') as holder, coalesce(i.last_error, '') as last_error, coalesce(i.decided_by, '') as decided_by,
       i.received_at at time zone 'UTC' as received_at, i.due_at at time zone 'UTC' as due_at,
       i.finished_at at time zone 'UTC' as finished_at, i.decided_at at time zone 'UTC' as decided_at,
       (select count(*)
          from inbox b
         where b.receiver = i.receiver
           and b.ordering_key = i.ordering_key
           and b.status = 'pending'
           and not b.first
           and b.id + 0 > i.id) as behind`

// selectEntries reads dead or discarded messages. The first condition is the index's, which
// the others cannot be known to imply, and the order is what only this index has.
const selectEntries = "-- deadletter.selectEntries\nselect " + entryColumns + `
  from inbox i
 where i.status in ('dead', 'discarded')
   and (i.status, i.id) > ($1, $2)
   and i.status <= $1
   and $4 in ('', i.ordering_key)
   and $5 in ('', i.type)
   and $6 in ('', i.receiver)
   and i.received_at <= clock_timestamp() - $7::interval
 order by i.status, i.id
 limit nullif($3::bigint, 0)`

const selectEntry = "-- deadletter.selectEntry\nselect " + entryColumns + `, i.payload, i.metadata
  from inbox i
 where i.id = $1`

// Filter selects dead or discarded messages. A field that is empty selects all.
type Filter struct {
	Status      Status // StatusDead or StatusDiscarded; of another one there is no list
	OrderingKey string
	Type        string
	Receiver    string
	Older       time.Duration // since the message was received, by the database's clock
}

// List returns up to limit messages that f selects, or all if limit is 0, in the order in which
// they were received, from the first above after on.
func List(ctx context.Context, q groupcommit.Querier, f Filter, after int64, limit int) ([]Entry, error) {
	entries, err := readEntries(ctx, q, selectEntries, f.Status, after, limit, f.OrderingKey, f.Type, f.Receiver, f.Older)
	if err != nil {
		return nil, fmt.Errorf("list %s messages: %w", f.Status, err)
	}
	return entries, nil
}

// Show returns one message, whatever its status. ErrNoMessage if no message has the number.
func Show(ctx context.Context, q groupcommit.Querier, number int64) (Entry, error) {
	entries, err := readEntries(ctx, q, selectEntry, number)
	if err == nil && len(entries) == 0 {
		err = ErrNoMessage
	}
	if err != nil {
		return Entry{}, fmt.Errorf("show message %d: %w", number, err)
	}
	return entries[0], nil
}

func readEntries(ctx context.Context, q groupcommit.Querier, sql string, args ...any) ([]Entry, error) {
	rows, _ := q.Query(ctx, sql, args...) // they have the error too
	return pgx.CollectRows(rows, pgx.RowToStructByNameLax[Entry])
}

// storeDecision retries a dead letter, or discards it where $3 is false. One that is retried keeps its
// place in the order of its key: a processor promotes one that others have passed. No earlier holder can
// end one that is discarded.
const storeDecision = `
-- deadletter.storeDecision
update inbox
   set status        = case when $3 then 'pending' else 'discarded' end,
       first         = first and $3,
       attempts      = case when $3 then 0 else attempts end,
       deaths        = case when $3 then 0 else deaths end,
       waits         = case when $3 then 0 else waits end,
       waiting_since = null,
       due_at        = clock_timestamp(),
       decided_by    = $2,
       decided_at    = clock_timestamp(),
       finished_at   = case when not $3 then clock_timestamp() end
 where id = $1
   and status = 'dead'
returning id`

// Retry makes a dead letter due at once, as if it had never been tried, and notes the
// operator, actor, who must have a name. Errors are ErrNoMessage and ErrNotDeadLetter; after
// any other it is unknown whether it was done, and Retry may be called again.
func Retry(ctx context.Context, q groupcommit.Querier, number int64, actor string) error {
	return decide(ctx, q, "retry", number, actor, true)
}

// Discard ends a dead letter undone, for ever, and lets the younger messages of its key
// continue, within a second, or one for each 2,000 messages that wait. It stays visible, with its actor.
// Errors are those of Retry.
func Discard(ctx context.Context, q groupcommit.Querier, number int64, actor string) error {
	return decide(ctx, q, "discard", number, actor, false)
}

// If we die here: the decision is stored with its actor, or not at all. Test:
// TestRetryAndDiscard_refuseWhatIsNoDeadLetter.
func decide(ctx context.Context, q groupcommit.Querier, what string, number int64, actor string, retries bool) error {
	var decided int64
	err := q.QueryRow(ctx, storeDecision, number, actor, retries).Scan(&decided)
	if errors.Is(err, pgx.ErrNoRows) {
		if _, err = Show(ctx, q, number); err == nil {
			err = ErrNotDeadLetter
		}
	}
	if err != nil {
		return fmt.Errorf("%s message %d: %w", what, number, err)
	}
	return nil
}
