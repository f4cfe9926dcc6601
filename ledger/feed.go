package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
)

// ErrUnknownCursor is returned by ReadFeed for a cursor that is no place in the merchant's feed
// as it is numbered now.
var ErrUnknownCursor = errors.New("no such place in the feed")

// webhook is the body of a webhook, and an entry of the feed. The id is that of the event, the
// same at every delivery, and goes into the webhook-id header too.
type webhook struct {
	ID        string    `json:"id"`
	Type      string    `json:"type"`
	CreatedAt time.Time `json:"created_at"`
	Data      any       `json:"data"` // the charge, the refund or the dispute as of the event
}

// Webhook returns the JSON that tells the merchant of the event at a version. It depends on
// the events up to that version alone, so its bytes are the same whenever it is made.
func (s Stream) Webhook(version int) ([]byte, error) {
	e := s.At(version)
	body, err := json.Marshal(webhook{
		ID: e.ID.String(), Type: domain.EventTypeNamed(e.Type).Webhook, CreatedAt: e.RecordedAt.UTC(), Data: subject(s.Until(version)),
	})
	if err != nil {
		return nil, fmt.Errorf("encode the webhook about %s: %w", e.ID, err)
	}
	return body, nil
}

// subject is the charge, the refund or the dispute which the newest event of the stream is about.
func subject(past Stream) any {
	c := past.Charge
	for _, r := range c.Refunds {
		if r.OutcomeVersion == c.Version || r.ReversalVersion == c.Version {
			return c.RefundView(r)
		}
	}
	for _, d := range c.Disputes {
		if slices.Contains(d.Versions, c.Version) {
			return c.DisputeView(d)
		}
	}
	return past.View()
}

// FeedPage is a page of a merchant's feed. Each entry is what Stream.Webhook returns. Next is
// the cursor behind the page, also behind what is Unreadable.
type FeedPage struct {
	Page

	Next string `json:"next"`
	// Unreadable are the webhook events of the page whose charges this program cannot read, such as
	// one that a newer program wrote to.
	Unreadable []UnreadableEvent `json:"unreadable,omitempty"`
}

// UnreadableEvent is what the row of an event says without its charge.
type UnreadableEvent struct {
	ID       string `json:"id"`
	Type     string `json:"type"` // of the webhook
	ChargeID string `json:"charge_id"`
	Version  int    `json:"version"`
	Err      error  `json:"-"`
}

// place is where a cursor points.
type place struct {
	Own      bool   // the tables are not those of an unrepaired dump
	Mark     uint64 // of the numbering
	Txid     uint64 // 0 for an event that is none of the merchant's
	Position int64
}

// selectPlace reads the place of an event, and the mark of the numbering, which the repair of a
// restored dump replaces. The coalesce keeps the planner from the index of another column.
const selectPlace = `
select n.own,
       m.written_in            as mark,
       coalesce(e.txid, '0')   as txid,
       coalesce(e.position, 0) as position
  from numbering n
 cross join numbering_mark m
  left join ledger_events e
    on e.event_id = $1
   and coalesce(e.merchant_id = $2, false)`

// selectFeed reads the webhook events that follow a place. It stays below the oldest open
// transaction, so none will appear between those that it reads. The order is that of the
// index ledger_events_feed: see selectChargesByStatus.
const selectFeed = `
select event_id,
       stream_id,
       version,
       type
  from ledger_events
 where (merchant_id, txid, position) > ($1, $2, $3)
   and merchant_id <= $1
   and txid < pg_snapshot_xmin(pg_current_snapshot())
   and webhook
 order by merchant_id, txid, position
 limit $4`

// outcome is a row of selectFeed.
type outcome struct {
	EventID  uuid.UUID
	StreamID string
	Version  int
	Type     string
}

// ReadFeed reads a page of a merchant's webhook events in the order of their transactions,
// also those that no webhook was sent about, limit entries or MaxPage bytes. after is the Next of the page
// before, empty for the first page. A client that follows the pages gets every one, also one
// that commits late: the feed ends below the oldest open transaction. A charge that cannot be read
// holds up no other: its events are in Unreadable.
//
// ErrUnknownCursor for a cursor whose event is none of the merchant's, such as one that a
// failover has lost, or that is older than the repair of a restored dump, which orders the feed
// anew. ErrRestored before that repair.
func ReadFeed(ctx context.Context, r postgres.Querier, merchant, after string, limit int) (FeedPage, error) {
	_, id, _ := strings.Cut(after, "_")
	event, _ := uuid.Parse(id) // what is no id becomes the zero id, which is no event's
	places, err := collect[place](r.Query(ctx, selectPlace, event, merchant))
	switch {
	case err != nil:
		return FeedPage{}, fmt.Errorf("read a place in the feed: %w", err)
	case len(places) == 0 || !places[0].Own:
		return FeedPage{}, ErrRestored
	case after != "" && (places[0].Txid == 0 || after != cursor(places[0].Mark, event)):
		return FeedPage{}, fmt.Errorf("read the feed after %q: %w", after, ErrUnknownCursor)
	}
	at := places[0]
	outcomes, err := collect[outcome](r.Query(ctx, selectFeed, merchant, at.Txid, at.Position, limit+1)) // one more than the page
	if err != nil {
		return FeedPage{}, fmt.Errorf("read the feed: %w", err)
	}
	for n := len(outcomes); ; n = max(1, n/4) {
		page, err := readWebhooks(ctx, r, outcomes[:min(n, limit)], limit)
		if errors.Is(err, errLong) && n > 1 {
			continue
		}
		if err != nil {
			return FeedPage{}, err
		}
		page.Next = after
		read := len(page.Data) + len(page.Unreadable)
		if page.HasMore = read < len(outcomes); read > 0 {
			page.Next = cursor(at.Mark, outcomes[read-1].EventID)
		}
		return page, nil
	}
}

func cursor(mark uint64, event uuid.UUID) string { return fmt.Sprintf("%d_%s", mark, event) }

// readWebhooks returns a page of the webhooks about events, in their order, until the page is full.
// Several streams that are longer than maxBytes together are errLong.
func readWebhooks(ctx context.Context, r postgres.Querier, outcomes []outcome, limit int) (FeedPage, error) {
	page := FeedPage{Page: newPage(limit)}
	ids := make([]string, len(outcomes))
	for i, o := range outcomes {
		ids[i] = o.StreamID
	}
	streams, err := readStreams(ctx, r, ids)
	if errors.Is(err, errLong) && len(outcomes) == 1 {
		page.Unreadable = []UnreadableEvent{outcomes[0].unreadable(err)}
		return page, nil
	}
	if err != nil {
		return page, fmt.Errorf("read the streams of the feed: %w", err)
	}
	for i, o := range outcomes {
		if len(streams[i]) < o.Version { // another server, which is behind, has answered this statement
			return page, fmt.Errorf("read the feed: version %d of stream %s is not there yet", o.Version, o.StreamID)
		}
		s, err := decode(o.StreamID, streams[i][:o.Version])
		if err != nil {
			page.Unreadable = append(page.Unreadable, o.unreadable(err))
			continue
		}
		body, err := s.Webhook(o.Version)
		if err != nil {
			return page, err
		}
		if !page.add(body) {
			break
		}
	}
	return page, nil
}

func (o outcome) unreadable(err error) UnreadableEvent {
	return UnreadableEvent{
		ID: o.EventID.String(), Type: domain.EventTypeNamed(o.Type).Webhook, ChargeID: o.StreamID, Version: o.Version, Err: err,
	}
}
