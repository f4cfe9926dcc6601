package books

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// ErrUnknownCursor is returned by ReadFeed for a cursor that is no place in the merchant's feed.
var ErrUnknownCursor = errors.New("no such place in the feed")

// FeedPage is a page of a merchant's feed. Each entry is what ledger.Stream.Webhook returns. Next is
// the cursor behind the page, also behind what is Unreadable.
type FeedPage struct {
	Page

	Next string `json:"next"`
	// Unreadable are the webhook events of the page whose charges this program cannot read, such as
	// one that a newer program wrote to.
	Unreadable []FeedEvent `json:"unreadable,omitempty"`
}

// FeedEvent is what the row of a webhook event says without its charge.
type FeedEvent struct {
	ID       string `json:"id"`
	Type     string `json:"type"` // of the webhook
	ChargeID string `json:"charge_id"`
	Version  int    `json:"version"`
	Err      error  `json:"-" db:"-"` // why its charge cannot be read
}

// place is where a cursor points.
type place struct {
	Txid     uint64
	Position int64
}

// selectPlace reads the place of an event. The coalesce keeps the planner from the index of another
// column.
const selectPlace = `
-- books.selectPlace
select txid,
       position
  from ledger_events
 where event_id = $1
   and coalesce(merchant_id = $2, false)`

// selectFeed reads the webhook events that follow a place. It stays below the oldest open
// transaction, so none will appear between those that it reads. The order is that of the
// index ledger_events_feed: see listed.
const selectFeed = `
-- books.selectFeed
select event_id::text as id,
       stream_id      as charge_id,
       version,
       type
  from ledger_events
 where (merchant_id, txid, position) > ($1, $2, $3)
   and merchant_id <= $1
   and txid < ledger_order(pg_snapshot_xmin(pg_current_snapshot()))
   and webhook
 order by merchant_id, txid, position
 limit $4`

// ReadFeed reads a page of a merchant's webhook events, of limit entries or MaxPage bytes, in the order of
// their transactions, also those that no webhook was sent about. after is the Next of the page before,
// empty for the first page. A client that follows the pages gets each event, also one that commits late:
// the feed ends below the oldest open transaction. The events of a charge that cannot be read are in
// Unreadable.
//
// ErrUnknownCursor for a cursor whose event is none of the merchant's, such as one that a failover or a
// restore has lost.
func ReadFeed(ctx context.Context, r postgres.Querier, merchant, after string, limit int) (FeedPage, error) {
	var at place
	if after != "" {
		event, _ := uuid.Parse(after) // what is no id becomes the zero id, which is no event's
		places, err := collect[place](r.Query(ctx, selectPlace, event, merchant))
		if err == nil && (len(places) == 0 || after != event.String()) {
			err = ErrUnknownCursor
		}
		if err != nil {
			return FeedPage{}, fmt.Errorf("read the feed after %q: %w", after, err)
		}
		at = places[0]
	}
	events, err := collect[FeedEvent](r.Query(ctx, selectFeed, merchant, at.Txid, at.Position, limit+1)) // one more than the page
	if err != nil {
		return FeedPage{}, fmt.Errorf("read the feed: %w", err)
	}
	page, err := readWebhooks(ctx, r, events, limit)
	if err != nil {
		return FeedPage{}, err
	}
	page.Next = after
	read := len(page.Data) + len(page.Unreadable)
	page.HasMore = read < len(events)
	if read > 0 {
		page.Next = events[read-1].ID
	}
	return page, nil
}

// readWebhooks returns a page of the webhooks about events, in their order, until the page is full.
func readWebhooks(ctx context.Context, r postgres.Querier, events []FeedEvent, limit int) (FeedPage, error) {
	page := FeedPage{Page: newPage(limit)}
	events = events[:min(len(events), limit)]
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.ChargeID
	}
	var failed error
	err := ledger.Each(ctx, r, ids, func(s ledger.Stream, unreadable error) bool {
		e := events[0]
		events = events[1:]
		if len(s.Events) >= e.Version {
			var body []byte
			if body, failed = s.Webhook(e.Version); failed != nil {
				return false
			}
			return page.add(body)
		}
		if unreadable == nil || errors.Is(unreadable, ledger.ErrNotFound) { // another server, which is behind, has answered this statement
			failed = fmt.Errorf("version %d of stream %s is not there yet", e.Version, e.ChargeID)
			return false
		}
		e.Type, e.Err = domain.EventTypeNamed(e.Type).Webhook, unreadable
		page.Unreadable = append(page.Unreadable, e)
		return true
	})
	if err = cmp.Or(err, failed); err != nil {
		return page, fmt.Errorf("read the streams of the feed: %w", err)
	}
	return page, nil
}
