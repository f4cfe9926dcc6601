package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

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
	Position           int64
	ID                 string
	Amount             int64
	AmountRefunded     int64
	Currency           string
	Status             string
	PaymentMethod      *string
	Description        *string
	Metadata           map[string]string
	LatestCharge       *string
	LastPaymentError   *apiError
	CancellationReason *string
	CanceledAt         *time.Time
	SettleAt           *time.Time
	CreatedAt          time.Time
}

const selectIntent = `
select position, id, amount, amount_refunded, currency, status,
       payment_method, description, metadata, latest_charge,
       last_payment_error, cancellation_reason, canceled_at, settle_at,
       created_at
from payment_intents`

// intentObject is Stripe's payment_intent.
type intentObject struct {
	ID                 string            `json:"id"`
	Object             string            `json:"object"`
	Amount             int64             `json:"amount"`
	AmountCapturable   int64             `json:"amount_capturable"`
	AmountReceived     int64             `json:"amount_received"`
	CanceledAt         *int64            `json:"canceled_at"`
	CancellationReason *string           `json:"cancellation_reason"`
	CaptureMethod      string            `json:"capture_method"`
	ConfirmationMethod string            `json:"confirmation_method"`
	Created            int64             `json:"created"`
	Currency           string            `json:"currency"`
	Customer           *string           `json:"customer"`
	Description        *string           `json:"description"`
	LastPaymentError   *apiError         `json:"last_payment_error"`
	LatestCharge       *string           `json:"latest_charge"`
	Livemode           bool              `json:"livemode"`
	Metadata           map[string]string `json:"metadata"`
	NextAction         *nextAction       `json:"next_action"`
	PaymentMethod      *string           `json:"payment_method"`
	PaymentMethodTypes []string          `json:"payment_method_types"`
	Processing         *string           `json:"processing"`
	Status             string            `json:"status"`
}

type nextAction struct {
	Type         string   `json:"type"`
	UseStripeSDK struct{} `json:"use_stripe_sdk"`
}

func (i *intent) object() *intentObject {
	o := &intentObject{
		ID: i.ID, Object: "payment_intent", Amount: i.Amount,
		CancellationReason: i.CancellationReason, CaptureMethod: "automatic", ConfirmationMethod: "automatic",
		Created: i.CreatedAt.Unix(), Currency: i.Currency, Description: i.Description,
		LastPaymentError: i.LastPaymentError, LatestCharge: i.LatestCharge, Metadata: i.Metadata,
		PaymentMethod: i.PaymentMethod, PaymentMethodTypes: []string{"card"}, Status: i.Status,
	}
	switch i.Status {
	case statusSucceeded:
		o.AmountReceived = i.Amount
	case statusRequiresAction:
		o.NextAction = &nextAction{Type: "use_stripe_sdk"}
	}
	if i.CanceledAt != nil {
		at := i.CanceledAt.Unix()
		o.CanceledAt = &at
	}
	return o
}

// intentsWhere reads intents; condition begins with "where".
func intentsWhere(ctx context.Context, q postgres.Querier, condition string, args ...any) ([]*intent, error) {
	rows, err := q.Query(ctx, selectIntent+"\n"+condition, args...)
	if err != nil {
		return nil, fmt.Errorf("read payment intents: %w", err)
	}
	intents, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[intent])
	if err != nil {
		return nil, fmt.Errorf("read payment intents: %w", err)
	}
	return intents, nil
}

// lockIntent holds the intent until the transaction ends, so that one request
// at a time decides about it. missing is the answer when there is none.
func lockIntent(ctx context.Context, tx pgx.Tx, id string, missing *apiError) (*intent, error) {
	if !isID(id, "pi_") {
		return nil, missing
	}
	intents, err := intentsWhere(ctx, tx, `where id = $1 for update`, id)
	if err != nil {
		return nil, err
	}
	if len(intents) == 0 {
		return nil, missing
	}
	return intents[0], nil
}

// isID tells whether id could be one that newID made with the prefix: nothing
// else reaches the database.
func isID(id, prefix string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && rest != "" && len(rest) < 64 &&
		strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") == ""
}

func noIntentAt(id string) *apiError {
	return noSuch(http.StatusNotFound, "payment_intent", "intent", id)
}

func (s *Sandbox) retrieveIntent(ctx context.Context, c *call) (answer, error) {
	if err := c.params.done(); err != nil {
		return answer{}, err
	}
	if !isID(c.target, "pi_") {
		return answer{}, noIntentAt(c.target)
	}
	intents, err := s.settled(ctx, `where id = $1`, c.target)
	switch {
	case err != nil:
		return answer{}, err
	case len(intents) == 0:
		return answer{}, noIntentAt(c.target)
	}
	return object(http.StatusOK, intents[0].object()), nil
}

// list is a page of Stripe's, newest first.
type list[T any] struct {
	Object  string `json:"object"`
	URL     string `json:"url"`
	HasMore bool   `json:"has_more"`
	Data    []T    `json:"data"`
}

// page makes a list of at most limit of the rows, which were read one further.
func page[R, T any](url string, rows []R, limit int, render func(R) T) list[T] {
	l := list[T]{Object: "list", URL: url, HasMore: len(rows) > limit, Data: []T{}}
	for _, row := range rows[:min(len(rows), limit)] {
		l.Data = append(l.Data, render(row))
	}
	return l
}

const positionOfIntent = `
select position
from payment_intents
where id = $1`

const pageOfIntents = `
where position < $1
order by position desc
limit $2`

func (s *Sandbox) listIntents(ctx context.Context, c *call) (answer, error) {
	limit, cursor := c.params.limit(), c.params.text("starting_after")
	if err := c.params.done(); err != nil {
		return answer{}, err
	}
	position, err := s.positionOf(ctx, positionOfIntent, "payment_intent", "pi_", cursor)
	if err != nil {
		return answer{}, err
	}
	intents, err := s.settled(ctx, pageOfIntents, position, limit+1)
	if err != nil {
		return answer{}, err
	}
	return object(http.StatusOK, page(c.path, intents, limit, (*intent).object)), nil
}

const pastAll = int64(1<<63 - 1)

// positionOf is where a page begins that starts after cursor.
func (s *Sandbox) positionOf(ctx context.Context, query, kind, prefix, cursor string) (int64, error) {
	if cursor == "" {
		return pastAll, nil
	}
	missing := noSuch(http.StatusBadRequest, kind, "starting_after", cursor)
	if !isID(cursor, prefix) {
		return 0, missing
	}
	var position int64
	err := s.pool.QueryRow(ctx, query, cursor).Scan(&position)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, missing
	case err != nil:
		return 0, fmt.Errorf("find the start of a page: %w", err)
	}
	return position, nil
}
