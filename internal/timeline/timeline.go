package timeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
)

// ErrNotFound is returned by Read where nothing is known of what was asked for.
var ErrNotFound = errors.New("no charge, refund or idempotency key is known by this name")

// Timeline is what happened to the charges that were asked for.
type Timeline struct {
	AsOf    time.Time `json:"as_of"` // of the snapshot, by the database's clock
	Charges []Charge  `json:"charges"`
	Entries []Entry   `json:"entries"` // oldest first
}

// Charge is a charge as it stands.
type Charge struct {
	ID            string        `json:"id"`
	MerchantID    string        `json:"merchant_id"`
	OrderID       string        `json:"order_id"`
	Amount        int64         `json:"amount"` // minor units
	Currency      string        `json:"currency"`
	Status        domain.Status `json:"status"` // empty where an event could not be read
	PaymentIntent string        `json:"payment_intent,omitempty"`
}

// Kind is the link of the chain that an entry belongs to.
type Kind string

// The links of the chain, in its order.
const (
	Key      Kind = "key"      // an idempotency key was answered
	Event    Kind = "event"    // of the charge's stream
	Outbox   Kind = "outbox"   // a message that still waits there, or was not removed yet
	Inbox    Kind = "inbox"    // what became of a message at its receiver
	Provider Kind = "provider" // what the provider holds now
	Webhook  Kind = "webhook"  // the event that the merchant took its webhook, and who wanted it once more
)

// Entry is one thing that happened, or that is so as of the timeline.
type Entry struct {
	At       time.Time      `json:"at"` // the database's time
	Kind     Kind           `json:"kind"`
	ChargeID string         `json:"charge_id,omitempty"` // empty for a key that names none
	Version  int            `json:"version,omitempty"`   // of an event, else 0
	What     string         `json:"what"`
	Who      string         `json:"who"`
	Detail   map[string]any `json:"detail"`
}

// Read tells what happened to a charge or, by its id, to the charge of a refund,
// or to whatever was asked for under an idempotency key, in all operations. A
// merchant's id narrows it to that merchant; the empty one does not. ErrNotFound
// if there is nothing.
func Read(ctx context.Context, db *postgres.DB, argument, merchant string) (Timeline, error) {
	tx, err := db.Pool().BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return Timeline{}, fmt.Errorf("open the timeline's snapshot: %w", err)
	}
	// Nothing was written, so there is nothing to lose here.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	t := Timeline{Charges: []Charge{}, Entries: []Entry{}}
	if err := tx.QueryRow(ctx, selectNow).Scan(&t.AsOf); err != nil {
		return Timeline{}, fmt.Errorf("ask for the database's time: %w", err)
	}
	t.AsOf = t.AsOf.UTC()
	found, err := find(ctx, tx, argument, merchant)
	if err != nil {
		return Timeline{}, err
	}
	r := reading{q: tx, ids: found.charges, keys: found.uses, t: &t}
	for _, read := range []func(context.Context) error{r.events, r.uses, r.outbox, r.inbox, r.resends, r.quarantine} {
		if err := read(ctx); err != nil {
			return Timeline{}, err
		}
	}
	if len(t.Entries) == 0 {
		return Timeline{}, ErrNotFound
	}
	t.sort()
	return t, nil
}

const selectNow = `
select clock_timestamp()`

// reading is a timeline on its way.
type reading struct {
	q        postgres.Querier
	ids      []string          // of the charges
	keys     []use             // that were asked for by name
	messages map[string]string // message id → charge
	t        *Timeline
}

func (r *reading) add(e Entry) {
	e.At = e.At.UTC()
	r.t.Entries = append(r.t.Entries, e)
}

// Add puts entries where they belong.
func (t *Timeline) Add(entries ...Entry) {
	t.Entries = append(t.Entries, entries...)
	t.sort()
}

// sort orders by time. What has one time stays as it was read, by its place in
// the chain.
func (t *Timeline) sort() {
	place := []Kind{Key, Event, Webhook, Outbox, Inbox, Provider}
	slices.SortStableFunc(t.Entries, func(a, b Entry) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(slices.Index(place, a.Kind), slices.Index(place, b.Kind)))
	})
}

// collect runs one query of the timeline. what completes "read …".
func collect[T any](ctx context.Context, q postgres.Querier, what, sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return found, nil
}
