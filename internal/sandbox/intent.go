package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

const (
	statusRequiresMethod       = "requires_payment_method"
	statusRequiresConfirmation = "requires_confirmation"
	statusRequiresAction       = "requires_action"
	statusProcessing           = "processing"
	statusSucceeded            = "succeeded"
	statusCanceled             = "canceled"
)

// intent is a row of payment_intents.
type intent struct {
	ID                 string
	Amount             int64
	AmountRefunded     int64
	CanceledAt         *int64
	CancellationReason *string
	Created            int64
	Currency           string
	Description        *string
	LastPaymentError   *apiError
	LatestCharge       *string
	Metadata           map[string]string
	NextAction         json.RawMessage
	PaymentMethod      *string
	Status             string
}

// MarshalJSON writes Stripe's payment_intent.
func (i *intent) MarshalJSON() ([]byte, error) {
	received, next := int64(0), json.RawMessage("null")
	switch i.Status {
	case statusSucceeded:
		received = i.Amount
	case statusRequiresAction:
		next = i.NextAction
	}
	return json.Marshal(shaped(map[string]any{
		"id": i.ID, "object": "payment_intent", "amount": i.Amount, "amount_capturable": 0, "amount_received": received,
		"amount_details": map[string]any{"tip": struct{}{}}, "client_secret": i.ID + "_secret_" + strings.TrimPrefix(i.ID, "pi_"),
		"canceled_at": i.CanceledAt, "cancellation_reason": i.CancellationReason, "capture_method": "automatic",
		"confirmation_method": "automatic", "created": i.Created, "currency": i.Currency,
		"description": i.Description, "last_payment_error": i.LastPaymentError, "latest_charge": i.LatestCharge,
		"livemode": false, "metadata": i.Metadata, "next_action": next, "payment_method": i.PaymentMethod,
		"payment_method_types": []string{"card"}, "status": i.Status,
	}, nullOfIntent))
}

const selectIntent = `
select id, amount, amount_refunded, currency, status, payment_method,
       description, metadata, latest_charge, last_payment_error,
       cancellation_reason, next_action,
       extract(epoch from canceled_at)::bigint as canceled_at,
       extract(epoch from created_at)::bigint as created
from payment_intents
`

// collect reads rows of one table.
func collect[T any](ctx context.Context, q postgres.Querier, query string, args ...any) ([]*T, error) {
	rows, _ := q.Query(ctx, query, args...) // CollectRows returns its error
	all, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[T])
	if err != nil {
		return nil, fmt.Errorf("read the records: %w", err)
	}
	return all, nil
}

// one reads the row of an object, or refuses with missing where there is none.
func one[T any](ctx context.Context, q postgres.Querier, query, prefix, id string, missing *apiError) (*T, error) {
	if !isID(id, prefix) {
		return nil, missing
	}
	found, err := collect[T](ctx, q, query, id)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, missing
	}
	return found[0], nil
}

// lockIntent locks the intent until the transaction ends, so that one request at a
// time decides about it. missing is the answer when there is none.
func lockIntent(ctx context.Context, tx pgx.Tx, id string, missing *apiError) (*intent, error) {
	return one[intent](ctx, tx, selectIntent+`where id = $1 for update`, "pi_", id, missing)
}

// isID reports whether newID could have made id with the prefix: nothing else
// reaches the database.
func isID(id, prefix string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && rest != "" && len(rest) < 64 &&
		strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") == ""
}

func noIntentAt(id string) *apiError {
	return noSuch(http.StatusNotFound, "payment_intent", "intent", id)
}

// retrieve answers the object that the path names. query takes its id.
func retrieve[T any](noun, param, prefix, query string) endpoint {
	return func(ctx context.Context, tx pgx.Tx, _ *pgx.Batch, c *call) (answer, error) {
		if err := c.params.done(); err != nil {
			return answer{}, err
		}
		found, err := one[T](ctx, tx, query, prefix, c.target, noSuch(http.StatusNotFound, noun, param, c.target))
		if err != nil {
			return answer{}, err
		}
		return object(http.StatusOK, found), nil
	}
}

const pageOfIntents = `
where position < $1
  and created_at >= to_timestamp($3)
order by position desc
limit $2`

func filterIntents(p *params) []any { return []any{p.since()} }

// list answers a page of the objects in noun's table, newest first. query takes the position
// before which the page begins, the number of rows, and the filter's values.
func list[T any](noun, prefix, query string, filter func(*params) []any) endpoint {
	return func(ctx context.Context, tx pgx.Tx, _ *pgx.Batch, c *call) (answer, error) {
		values, limit, cursor := filter(c.params), c.params.limit(), c.params.text("starting_after")
		if err := c.params.done(); err != nil {
			return answer{}, err
		}
		first := &struct{ Position int64 }{math.MaxInt64}
		if cursor != "" {
			var err error
			missing := noSuch(http.StatusBadRequest, noun, "starting_after", cursor)
			first, err = one[struct{ Position int64 }](ctx, tx, `select position from `+noun+`s where id = $1`, prefix, cursor, missing)
			if err != nil {
				return answer{}, err
			}
		}
		rows, err := collect[T](ctx, tx, query, append([]any{first.Position, limit + 1}, values...)...)
		if err != nil {
			return answer{}, err
		}
		return object(http.StatusOK, map[string]any{
			"object": "list", "url": c.path, "has_more": len(rows) > limit, "data": rows[:min(len(rows), limit)],
		}), nil
	}
}
