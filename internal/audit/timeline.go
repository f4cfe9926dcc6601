package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// ErrNotFound is returned by ReadTimeline for a name that nothing is stored under.
var ErrNotFound = errors.New("no charge, refund or idempotency key is known by this name")

// Timeline is what happened to charges.
type Timeline struct {
	AsOf    time.Time        `json:"as_of"` // of the snapshot, by the database's clock
	Charges []TimelineCharge `json:"charges"`
	Entries []TimelineEntry  `json:"entries"` // oldest first
}

// TimelineCharge is the present state of a charge.
type TimelineCharge struct {
	ID            string        `json:"id"`
	MerchantID    string        `json:"merchant_id"`
	OrderID       string        `json:"order_id"`
	Amount        int64         `json:"amount"` // minor units
	Currency      string        `json:"currency"`
	Status        domain.Status `json:"status"` // empty where an event could not be read
	PaymentIntent string        `json:"payment_intent,omitempty"`
	Version       int           `json:"version"` // of the last event

	Steps []domain.StepState `json:"steps,omitempty"` // none where an event could not be read
}

// TimelineEntry is one thing that happened, or that is so as of the timeline.
type TimelineEntry struct {
	At       time.Time `json:"at"`                  // the database's time
	Kind     string    `json:"kind"`                // key, event, webhook (the merchant took it), inbox or provider
	ChargeID string    `json:"charge_id,omitempty"` // empty for a key that names none
	Version  int       `json:"version,omitempty"`   // of an event, else 0
	What     string    `json:"what"`
	Who      string    `json:"who"`
	Detail   Detail    `json:"detail"`
}

// Detail is the part of a stored row that is shown.
type Detail map[string]any

// UnmarshalJSON keeps numbers as they are written.
func (d *Detail) UnmarshalJSON(text []byte) error {
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	return decoder.Decode((*map[string]any)(d))
}

// String is the members in the order of their names, with quotes where they are needed.
func (d Detail) String() string {
	words := make([]string, 0, len(d))
	for _, name := range slices.Sorted(maps.Keys(d)) {
		words = append(words, name+"="+quoted(d[name]))
	}
	return strings.Join(words, " ")
}

func quoted(value any) string {
	text := fmt.Sprint(cmp.Or(value, any("null")))
	if at, ok := value.(time.Time); ok {
		text = at.Format(time.RFC3339Nano)
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at.UTC().Format(time.RFC3339)
	}
	if text == "" || strings.ContainsFunc(text, func(r rune) bool { return r == ' ' || r == '"' || r == '=' || !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// ReadTimeline reports what happened to a charge, to the charge of a refund, or to whatever
// was requested under an idempotency key in all operations. merchant, if not empty, narrows
// it to one merchant. It returns ErrNotFound if there is nothing.
func ReadTimeline(ctx context.Context, db *postgres.DB, name, merchant string) (Timeline, error) {
	t := Timeline{Charges: []TimelineCharge{}, Entries: []TimelineEntry{}}
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, db.Pool(), snapshot, func(tx pgx.Tx) error { return t.read(ctx, tx, name, merchant) })
	if err == nil && len(t.Entries) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return Timeline{}, err
	}
	for i := range t.Entries {
		t.Entries[i].At = t.Entries[i].At.UTC()
	}
	// Entries of one time stay in the order of the chain: keys, events, messages.
	slices.SortStableFunc(t.Entries, func(a, b TimelineEntry) int { return a.At.Compare(b.At) })
	return t, nil
}

func (t *Timeline) read(ctx context.Context, tx pgx.Tx, name, merchant string) error {
	var ids []string
	var key *string // the name where it is taken for a key, which may have led to no charge
	if err := tx.QueryRow(ctx, selectNamed, name, merchant).Scan(&t.AsOf, &ids, &key); err != nil {
		return fmt.Errorf("find the charge: %w", err)
	}
	return cmp.Or(
		t.add(ctx, tx, "the keys", selectKeyUses, key, merchant, ids),
		t.readEvents(ctx, tx, ids),
		t.add(ctx, tx, "the inbox", selectInbox, ids, t.AsOf),
	)
}

func (t *Timeline) add(ctx context.Context, q postgres.Querier, what, sql string, args ...any) error {
	entries, err := collect[TimelineEntry](ctx, q, what, sql, args...)
	t.Entries = append(t.Entries, entries...)
	return err
}

const selectEvents = `
-- audit.selectEvents
select recorded_at                         as at,
       case
         when type like 'merchant.notified.%' then 'webhook'
         else 'event'
       end                                 as kind,
       stream_id                           as charge_id,
       version,
       type                                as what,
       coalesce(metadata ->> 'actor', '')  as who,
       jsonb_strip_nulls(jsonb_build_object(
         'event_id', event_id,
         'request',  nullif(metadata ->> 'correlation_id', ''),
         'cause',    nullif(nullif(metadata ->> 'causation_id', ''), metadata ->> 'correlation_id'))) as detail
  from ledger_events
 where stream_id = any($1)
 order by stream_id, version`

// readEvents adds the streams, and the charges as far as their events can be read.
func (t *Timeline) readEvents(ctx context.Context, q postgres.Querier, ids []string) error {
	events, err := collect[TimelineEntry](ctx, q, "the events", selectEvents, ids)
	if err != nil {
		return err
	}
	t.Entries = append(t.Entries, events...)
	byCharge := map[string][]TimelineEntry{}
	for _, e := range events {
		byCharge[e.ChargeID] = append(byCharge[e.ChargeID], e)
	}
	return ledger.Each(ctx, q, slices.Sorted(maps.Keys(byCharge)), func(s ledger.Stream, unreadable error) bool {
		entries, charge := byCharge[s.ID], ledger.New(s.ID).Charge
		for i, e := range s.Events {
			if charge.Voids(e.Event) {
				entries[i].Detail["void"] = true
			}
			maps.Copy(entries[i].Detail, domain.Details(e.Event))
			charge = domain.Fold(charge, e.Event)
		}
		c := TimelineCharge{
			ID: s.ID, MerchantID: charge.MerchantID, OrderID: charge.OrderID, Amount: charge.Amount, Currency: string(charge.Currency),
			Status: charge.Status, PaymentIntent: charge.PaymentIntent, Version: entries[len(entries)-1].Version, Steps: charge.Steps,
		}
		if unreadable != nil {
			entries[len(s.Events)].Detail["unreadable"] = unreadable.Error()
			c.Status, c.Steps = "", nil
		}
		t.Charges = append(t.Charges, c)
		return true
	})
}
