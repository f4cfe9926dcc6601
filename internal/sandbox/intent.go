package sandbox

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	statusRequiresMethod       = "requires_payment_method"
	statusRequiresConfirmation = "requires_confirmation"
	statusRequiresAction       = "requires_action"
	statusProcessing           = "processing"
	statusSucceeded            = "succeeded"
	statusCanceled             = "canceled"
)

// intent is a payment intent.
type intent struct {
	ID                 string
	Amount             int64
	AmountRefunded     int64
	CanceledAt         *int64
	CancellationReason *string
	Created            int64
	Currency           string
	Customer           *string
	Description        *string
	LastPaymentError   *apiError
	LatestCharge       *string
	Metadata           map[string]string
	NextAction         json.RawMessage
	PaymentMethod      *string
	Status             string
	SettleAt           time.Time // when it succeeds, if it is processing
	ChargeID           string    // of payonce's charge, for GET /books alone; "" if the request did not name it
}

// reference is the name of an intent in GET /books.
func (i *intent) reference() string {
	if id, named := i.Metadata["charge_id"]; named {
		return id
	}
	return i.ChargeID
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
	return json.Marshal(shaped(members{
		"id": i.ID, "object": "payment_intent", "amount": i.Amount, "amount_capturable": 0, "amount_received": received,
		"amount_details": members{"tip": struct{}{}}, "client_secret": i.ID + "_secret_" + strings.TrimPrefix(i.ID, "pi_"),
		"canceled_at": i.CanceledAt, "cancellation_reason": i.CancellationReason, "capture_method": "automatic",
		"confirmation_method": "automatic", "created": i.Created, "currency": i.Currency, "customer": i.Customer,
		"description": i.Description, "last_payment_error": i.LastPaymentError, "latest_charge": i.LatestCharge,
		"livemode": false, "metadata": i.Metadata, "next_action": next, "payment_method": i.PaymentMethod,
		"payment_method_types": []string{"card"}, "status": i.Status,
	}, nullOfIntent))
}

// intentAt is a copy of an intent, which a decision may change. missing is the answer when
// there is none.
func (b *books) intentAt(id string, missing *apiError) (*intent, error) {
	known, found := b.intents.get(id)
	if !found {
		return nil, missing
	}
	i := *known
	return &i, nil
}

func noIntentAt(id string) *apiError {
	return noSuch(http.StatusNotFound, "payment_intent", "intent", id)
}

// put adds what an intent has become to a change.
func (c *change) put(i *intent) {
	if row := (*intentFields)(i); !slices.Contains(c.Intents, row) {
		c.Intents = append(c.Intents, row)
	}
}

// retrieve answers the object that the path names.
func retrieve[T any](noun, param string, get func(id string) (T, bool)) endpoint {
	return func(c *call, _ *change) (answer, error) {
		if err := c.params.done(); err != nil {
			return answer{}, err
		}
		found, ok := get(c.target)
		if !ok {
			return answer{}, noSuch(http.StatusNotFound, noun, param, c.target)
		}
		return object(http.StatusOK, found), nil
	}
}

func filterIntents(p *params) func(*intent) bool {
	since := p.since()
	return func(i *intent) bool { return i.Created >= since }
}

// list answers a page of the objects that match a filter, newest first.
func list[T any](noun string, from *table[T], filter func(*params) func(T) bool) endpoint {
	return func(c *call, _ *change) (answer, error) {
		matches, limit, cursor := filter(c.params), c.params.limit(), c.params.text("starting_after")
		if err := c.params.done(); err != nil {
			return answer{}, err
		}
		before := len(from.rows)
		if cursor != "" {
			at, known := from.index[cursor]
			if !known {
				return answer{}, noSuch(http.StatusBadRequest, noun, "starting_after", cursor)
			}
			before = at
		}
		page := []T{}
		for _, row := range slices.Backward(from.rows[:before]) {
			if matches(row) {
				page = append(page, row)
			}
			if len(page) > limit {
				break
			}
		}
		return object(http.StatusOK, members{
			"object": "list", "url": c.path, "has_more": len(page) > limit, "data": page[:min(len(page), limit)],
		}), nil
	}
}
