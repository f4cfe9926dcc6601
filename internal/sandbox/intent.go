package sandbox

import (
	"context"
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

// intent is a row of payment_intents and, once shown was called, Stripe's
// payment_intent.
type intent struct {
	AmountRefunded     int64             `json:"-"`
	ID                 string            `json:"id"`
	Object             string            `json:"object" db:"-"`
	Amount             int64             `json:"amount"`
	AmountCapturable   int64             `json:"amount_capturable" db:"-"`
	AmountReceived     int64             `json:"amount_received" db:"-"`
	CanceledAt         *int64            `json:"canceled_at"`
	CancellationReason *string           `json:"cancellation_reason"`
	CaptureMethod      string            `json:"capture_method" db:"-"`
	ConfirmationMethod string            `json:"confirmation_method" db:"-"`
	Created            int64             `json:"created"`
	Currency           string            `json:"currency"`
	Customer           *string           `json:"customer" db:"-"`
	Description        *string           `json:"description"`
	LastPaymentError   *apiError         `json:"last_payment_error"`
	LatestCharge       *string           `json:"latest_charge"`
	Livemode           bool              `json:"livemode" db:"-"`
	Metadata           map[string]string `json:"metadata"`
	NextAction         *nextAction       `json:"next_action" db:"-"`
	PaymentMethod      *string           `json:"payment_method"`
	PaymentMethodTypes []string          `json:"payment_method_types" db:"-"`
	Processing         *string           `json:"processing" db:"-"`
	Status             string            `json:"status"`
}

type nextAction struct {
	Type         string   `json:"type"`
	UseStripeSDK struct{} `json:"use_stripe_sdk"`
}

const selectIntent = `
select id, amount, amount_refunded, currency, status, payment_method,
       description, metadata, latest_charge, last_payment_error,
       cancellation_reason,
       extract(epoch from canceled_at)::bigint as canceled_at,
       extract(epoch from created_at)::bigint as created
from payment_intents
`

// shown fills in what follows from the row.
func (i *intent) shown() *intent {
	i.Object, i.CaptureMethod, i.ConfirmationMethod = "payment_intent", "automatic", "automatic"
	i.PaymentMethodTypes = []string{"card"}
	i.AmountReceived, i.NextAction = 0, nil
	switch i.Status {
	case statusSucceeded:
		i.AmountReceived = i.Amount
	case statusRequiresAction:
		i.NextAction = &nextAction{Type: "use_stripe_sdk"}
	}
	return i
}

// collect reads rows of one of the books.
func collect[T any](ctx context.Context, q postgres.Querier, query string, args ...any) ([]*T, error) {
	rows, _ := q.Query(ctx, query, args...) // CollectRows returns its error
	all, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[T])
	if err != nil {
		return nil, fmt.Errorf("read the books: %w", err)
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

func (s *Sandbox) retrieveIntent(ctx context.Context, tx pgx.Tx, _ *pgx.Batch, c *call) (answer, error) {
	if err := c.params.done(); err != nil {
		return answer{}, err
	}
	i, err := one[intent](ctx, tx, selectIntent+`where id = $1`, "pi_", c.target, noIntentAt(c.target))
	if err != nil {
		return answer{}, err
	}
	return object(http.StatusOK, i.shown()), nil
}

const pageOfIntents = `
where position < $1
order by position desc
limit $2`

func (s *Sandbox) listIntents(ctx context.Context, tx pgx.Tx, _ *pgx.Batch, c *call) (answer, error) {
	return list(ctx, tx, c, "payment_intent", "pi_", selectIntent+pageOfIntents, (*intent).shown)
}

// list answers a page of the objects in noun's table, newest first. query takes the position
// before which the page begins, the number of rows, and args.
func list[T any](
	ctx context.Context, q postgres.Querier, c *call, noun, prefix, query string, shown func(*T) *T, args ...any,
) (answer, error) {
	limit, cursor := c.params.limit(), c.params.text("starting_after")
	if err := c.params.done(); err != nil {
		return answer{}, err
	}
	first := &struct{ Position int64 }{math.MaxInt64}
	if cursor != "" {
		var err error
		missing := noSuch(http.StatusBadRequest, noun, "starting_after", cursor)
		first, err = one[struct{ Position int64 }](ctx, q, `select position from `+noun+`s where id = $1`, prefix, cursor, missing)
		if err != nil {
			return answer{}, err
		}
	}
	rows, err := collect[T](ctx, q, query, append([]any{first.Position, limit + 1}, args...)...)
	if err != nil {
		return answer{}, err
	}
	page := struct {
		Object  string `json:"object"`
		URL     string `json:"url"`
		HasMore bool   `json:"has_more"`
		Data    []*T   `json:"data"`
	}{"list", c.path, len(rows) > limit, rows[:min(len(rows), limit)]}
	for _, row := range page.Data {
		shown(row)
	}
	return object(http.StatusOK, page), nil
}
