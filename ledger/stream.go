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
	rows, err := q.Query(ctx, selectStream, id)
	if err != nil {
		return Stream{}, fmt.Errorf("load stream %s: %w", id, err)
	}
	stored, err := pgx.CollectRows(rows, pgx.RowToStructByName[eventRow])
	if err != nil {
		return Stream{}, fmt.Errorf("load stream %s: %w", id, err)
	}
	if len(stored) == 0 {
		return Stream{}, fmt.Errorf("load stream %s: %w", id, ErrNotFound)
	}
	return replay(id, stored)
}

// replay makes a stream of its stored events, of which there is one at least.
func replay(id string, stored []eventRow) (Stream, error) {
	s := New(id)
	for _, row := range stored {
		e, err := domain.Decode(row.Type, row.Data)
		if err != nil {
			return Stream{}, fmt.Errorf("load stream %s at version %d: %w", id, row.Version, err)
		}
		s.Events = append(s.Events, Recorded{
			ID: row.EventID, Version: row.Version, Type: row.Type, Data: row.Data, Event: e,
			OccurredAt: row.OccurredAt, RecordedAt: row.RecordedAt,
		})
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
	EventID    uuid.UUID
	Version    int
	Type       string
	Data       []byte
	OccurredAt time.Time
	RecordedAt time.Time
}
