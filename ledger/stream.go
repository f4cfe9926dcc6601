package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
)

// ErrNotFound is returned by Load for a stream without events.
var ErrNotFound = errors.New("no such charge")

// Stream is the history of one charge and its fold.
type Stream struct {
	ID     string
	Charge domain.Charge
	Events []Recorded
}

// New is a stream that has no event yet.
func New(id string) Stream { return Stream{ID: id, Charge: domain.Charge{ID: id}} }

// Recorded is an event as it is stored.
type Recorded struct {
	ID         uuid.UUID
	Version    int
	Type       string
	Data       []byte // a JSON object
	Event      domain.Event
	OccurredAt time.Time
	RecordedAt time.Time // zero until it is read back
}

// At is the event at a version, which must be one of the stream's.
func (s Stream) At(version int) Recorded { return s.Events[version-1] }

// Head is the newest event.
func (s Stream) Head() Recorded { return s.Events[len(s.Events)-1] }

// Until is the stream as it was at a version.
func (s Stream) Until(version int) Stream {
	past := New(s.ID)
	past.Events = s.Events[:version:version]
	past.fold()
	return past
}

// View shows the charge as merchants see it.
func (s Stream) View() domain.View { return s.Charge.View(s.Events[0].OccurredAt) }

const selectStream = `
select event_id,
       version,
       type,
       data,
       occurred_at,
       recorded_at
  from ledger_events
 where stream_id = $1
 order by version`

// Load reads and folds a stream. ErrNotFound if it has no event.
func Load(ctx context.Context, q postgres.Querier, id string) (Stream, error) {
	stored, err := readStream(ctx, q, id)
	if err != nil {
		return Stream{}, fmt.Errorf("load stream %s: %w", id, err)
	}
	return replay(id, stored)
}

func readStream(ctx context.Context, q postgres.Querier, id string) (stored []eventRow, err error) {
	rows, err := q.Query(ctx, selectStream, id)
	if err != nil {
		return nil, err
	}
	var e eventRow
	_, err = pgx.ForEachRow(rows, e.columns(), func() error { stored = append(stored, e); return nil })
	return stored, err
}

// Loader is Load for many at once: streams that are asked for at the same moment
// share a round trip (postgres.Reads).
type Loader struct {
	together *postgres.Reads[string, []eventRow]
}

// NewLoader makes one. So many round trips are under way at a time, at most.
func NewLoader(q postgres.Querier, most int) *Loader {
	return &Loader{together: postgres.NewReads(most, func(ctx context.Context, ids []string) ([][]eventRow, error) {
		return readStreams(ctx, q, ids)
	})}
}

// Load is the function of that name, in the company of others.
func (l *Loader) Load(ctx context.Context, id string) (Stream, error) {
	stored, err := l.together.Ask(ctx, id)
	if err != nil {
		return Stream{}, fmt.Errorf("load stream %s: %w", id, err)
	}
	return replay(id, stored)
}

const selectSeveral = `
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

// readStreams reads the events of each stream. One alone costs less as Load has it.
func readStreams(ctx context.Context, q postgres.Querier, ids []string) ([][]eventRow, error) {
	all := make([][]eventRow, len(ids))
	if len(ids) == 1 {
		var err error
		all[0], err = readStream(ctx, q, ids[0])
		return all, err
	}
	rows, err := q.Query(ctx, selectSeveral, ids)
	if err != nil {
		return nil, err
	}
	found := make(map[string][]eventRow, len(ids))
	var e eventRow
	_, err = pgx.ForEachRow(rows, append([]any{&e.streamID}, e.columns()...), func() error {
		found[e.streamID] = append(found[e.streamID], e)
		return nil
	})
	for i, id := range ids {
		all[i] = found[id]
	}
	return all, err
}

// replay makes a stream of its stored events. ErrNotFound if there is none.
func replay(id string, stored []eventRow) (Stream, error) {
	if len(stored) == 0 {
		return Stream{}, fmt.Errorf("load stream %s: %w", id, ErrNotFound)
	}
	s := New(id)
	s.Events = make([]Recorded, 0, len(stored))
	for _, row := range stored {
		e, err := domain.Decode(row.Type, row.Data)
		if err != nil {
			return Stream{}, fmt.Errorf("load stream %s at version %d: %w", id, row.Version, err)
		}
		row.Event = e
		s.Events = append(s.Events, row.Recorded)
	}
	s.fold()
	return s, nil
}

// fold makes the charge of a stream that has its events.
func (s *Stream) fold() {
	events := make([]domain.Event, len(s.Events))
	for i, e := range s.Events {
		events[i] = e.Event
	}
	s.Charge = domain.Fold(s.Charge, events...)
}

type eventRow struct {
	Recorded

	streamID string // where rows are of several streams
}

// columns are event_id, version, type, data, occurred_at and recorded_at.
func (e *eventRow) columns() []any {
	return []any{(*[16]byte)(&e.ID), &e.Version, &e.Type, &e.Data, &e.OccurredAt, &e.RecordedAt}
}
