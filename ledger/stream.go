// Package ledger is the event store and the double-entry ledger of payonce: one stream
// of events for each charge, and the postings that the events cause.
//
// # Usage
//
//	s, err := ledger.Load(ctx, db, chargeID)
//	events, err := s.Charge.RequestRefund(request)
//	s, err = ledger.Append(batch, s, cause, events...)
//	err = db.Commit(ctx, batch) // IsConflict(err): load and decide again
//
// # Guarantees
//
//   - An event happens once, at one version of its stream, and never changes.
//   - The postings of an event are committed with the event, or not at all.
//   - A decision on an older state of a stream is refused, together with everything else
//     in its batch.
//   - Among its charges with OneChargePerOrder, an order has at most one that has not failed.
//   - A void request (domain.Charge.Voids) posts nothing and changes nothing.
//
// # Limits
//
// Events have no order between streams: position is the order of inserts, and readers follow
// the order of transaction ids. Neither is the order of commits.
//
// Tables: ledger_events, ledger_postings, held_orders, restore_mark.
package ledger

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
)

//go:embed schema.sql
var schema string

//go:embed books.sql
var books string

// Schema returns the SQL that creates the tables of this package, and those of package books, in an
// empty database. It runs once, in a transaction.
func Schema() string { return schema + books }

// ErrNotFound is returned for a stream without events.
var ErrNotFound = errors.New("no such charge")

// Stream is the history of one charge and its fold.
type Stream struct {
	ID     string
	Charge domain.Charge
	Events []StoredEvent
}

// StoredEvent is an event as it is stored.
type StoredEvent struct {
	ID         uuid.UUID
	Version    int
	Type       string
	Data       []byte // a JSON object
	Event      domain.Event
	OccurredAt time.Time
	RecordedAt time.Time // zero until it is loaded
}

// New returns a stream that has no event yet.
func New(id string) Stream { return Stream{ID: id, Charge: domain.Charge{ID: id}} }

// At returns the event at a version, which must be one of the stream's.
func (s Stream) At(version int) StoredEvent { return s.Events[version-1] }

// Head returns the newest event.
func (s Stream) Head() StoredEvent { return s.Events[len(s.Events)-1] }

// Until returns the stream as it was at a version.
func (s Stream) Until(version int) Stream { return folded(s.ID, s.Events[:version:version]) }

// View returns the charge as merchants see it.
func (s Stream) View() domain.View { return s.Charge.View(s.Events[0].OccurredAt) }

func folded(id string, recorded []StoredEvent) Stream {
	s := New(id)
	s.Events = recorded
	events := make([]domain.Event, len(recorded))
	for i, e := range recorded {
		events[i] = e.Event
	}
	s.Charge = domain.Fold(s.Charge, events...)
	return s
}

// Load reads and folds a stream, from ledger_events alone. ErrNotFound if it has no event.
func Load(ctx context.Context, q postgres.Querier, id string) (s Stream, err error) {
	failed := Each(ctx, q, []string{id}, func(found Stream, unreadable error) bool {
		s, err = found, unreadable
		return true
	})
	return s, cmp.Or(failed, err)
}

// NewLoader returns a function that loads streams as Load does. Calls that come at the same moment
// share a statement, see postgres.Reads. At most `most` reads are in flight.
func NewLoader(q postgres.Querier, most int) func(ctx context.Context, id string) (Stream, error) {
	type read struct {
		Stream
		unreadable error
	}
	reads := postgres.NewReads(most, func(ctx context.Context, ids []string) (all []read, err error) {
		err = Each(ctx, q, ids, func(s Stream, unreadable error) bool { all = append(all, read{s, unreadable}); return true })
		return all, err
	})
	return func(ctx context.Context, id string) (Stream, error) {
		found, err := reads.Lookup(ctx, id)
		return found.Stream, cmp.Or(err, found.unreadable)
	}
}

const selectStreams = `
-- ledger.selectStreams
select stream_id,
       event_id,
       version,
       type,
       data,
       occurred_at,
       recorded_at
  from ledger_events
 where stream_id = any($1)
 order by stream_id, version`

// maxBytes is what a program reads of streams at once. A charge with domain.MaxRefunds of the
// largest refunds has less than half of it.
const maxBytes = 16 << 20

var errLong = fmt.Errorf("the events have more than %d bytes", maxBytes)

// readStreams reads all events of each stream: errLong if they are too many to hold.
func readStreams(ctx context.Context, q postgres.Querier, ids []string) (map[string][]StoredEvent, error) {
	rows, _ := q.Query(ctx, selectStreams, ids) // ForEachRow returns its error
	var stream string
	var e StoredEvent
	found, size := map[string][]StoredEvent{}, 0
	id := (*[16]byte)(&e.ID) // pgx reads the type uuid.UUID by way of text
	_, err := pgx.ForEachRow(rows, []any{&stream, id, &e.Version, &e.Type, &e.Data, &e.OccurredAt, &e.RecordedAt}, func() error {
		found[stream] = append(found[stream], e)
		if size += len(e.Data); size > maxBytes {
			return errLong
		}
		return nil
	})
	return found, err
}

// Each reads and folds streams and calls visit with each of them, in the order of ids, until visit returns
// false. For a stream that this program cannot read visit gets the events before the first unreadable
// one, and the error: an event of a newer program, more bytes than a program holds, or ErrNotFound. The
// error of Each is that of the database.
func Each(ctx context.Context, q postgres.Querier, ids []string, visit func(s Stream, unreadable error) bool) error {
	for n := len(ids); len(ids) > 0; n = min(n, len(ids)) {
		stored, err := readStreams(ctx, q, ids[:n])
		switch long := errors.Is(err, errLong); {
		case long && n > 1:
			n = max(1, n/4)
			continue
		case long:
			stored = nil
		case err != nil:
			return fmt.Errorf("load %d streams, such as %s: %w", n, ids[0], err)
		}
		for _, id := range ids[:n] {
			s, unreadable := decode(id, stored[id])
			if !visit(s, cmp.Or(err, unreadable)) {
				return nil
			}
		}
		ids = ids[n:]
	}
	return nil
}

// decode makes a stream of its stored events, of those before the first that cannot be read.
// ErrNotFound if there is none.
func decode(id string, events []StoredEvent) (s Stream, err error) {
	if len(events) == 0 {
		return New(id), fmt.Errorf("load stream %s: %w", id, ErrNotFound)
	}
	for i, e := range events {
		if events[i].Event, err = domain.Decode(e.Type, e.Data); err != nil {
			events, err = events[:i], fmt.Errorf("load stream %s at version %d: %w", id, e.Version, err)
			break
		}
	}
	return folded(id, events), err
}
