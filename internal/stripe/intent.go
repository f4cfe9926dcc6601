package stripe

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	stripego "github.com/stripe/stripe-go/v85"
)

// Status is the state of a payment intent.
type Status string

// The states of a payment intent. There is no other: an intent in a state that
// is not listed here is an answer that was not understood.
const (
	// RequiresPaymentMethod is the state after a declined attempt, and also of
	// an intent that never had a payment method: see [Intent.Attempted].
	RequiresPaymentMethod Status = "requires_payment_method"
	// RequiresConfirmation is the state after CreateIntent, until the first
	// attempt.
	RequiresConfirmation Status = "requires_confirmation"
	RequiresAction       Status = "requires_action"
	Processing           Status = "processing"
	RequiresCapture      Status = "requires_capture"
	Succeeded            Status = "succeeded"
	Canceled             Status = "canceled"
)

// The metadata keys under which the provider keeps our names.
const (
	metadataReference = "charge_reference"
	metadataRefund    = "refund_id"
)

// headerCharge names the charge in the records of the sandbox. It is no parameter: the provider
// ignores it, and a request under the same key has another one where the charge was lost.
const headerCharge = "Payonce-Charge"

// Intent is a payment intent: the provider's object for one charge.
type Intent struct {
	ID     string
	Status Status
	// Amount to be captured and AmountReceived, in minor units of ISO 4217.
	Amount         int64
	AmountReceived int64
	// Currency is upper case.
	Currency string
	// Reference names our charge (metadata charge_reference), empty on an intent of other origin.
	Reference string
	// Attempted is true once a confirmation has been attempted. It tells a
	// declined intent from one that never was confirmed.
	Attempted bool
	// Decline is why the last attempt failed, nil if none did. The provider
	// clears it when the intent is updated; Attempted stays.
	Decline *Decline
	// RedirectURL is where the customer acts, in the state RequiresAction. Empty if the
	// provider asks for another action than a redirect.
	RedirectURL string
	Created     time.Time
}

// Decline is why a card was declined.
type Decline struct {
	// Code is the provider's word for it, mostly "card_declined".
	Code string
	// DeclineCode is the issuer's reason, "insufficient_funds" for example. It
	// may be empty.
	DeclineCode string
	// Message is the provider's, for people.
	Message string
}

// AuthenticationRequired reports whether the issuer wanted the customer, who is
// absent, to authenticate.
func (d Decline) AuthenticationRequired() bool {
	switch d.Code {
	case "authentication_required", "requires_action_not_handled", "payment_intent_authentication_failure":
		return true
	}
	return d.DeclineCode == "authentication_required"
}

// OfTestKey reports whether a live card was declined because the secret key is a test key.
func (d Decline) OfTestKey() bool { return d.DeclineCode == "test_mode_live_card" }

func (d Decline) String() string {
	if d.DeclineCode == "" {
		return d.Code + ": " + d.Message
	}
	return d.Code + " (" + d.DeclineCode + "): " + d.Message
}

// CreateParams describe the intent of one charge.
type CreateParams struct {
	// Reference names our charge at the provider. ChargeID is no parameter: the provider ignores it.
	Reference, ChargeID string
	// Amount in ISO 4217 minor units of Currency, which may be in any case.
	Amount        int64
	Currency      string
	PaymentMethod string
	// Customer is the provider's, and needed where PaymentMethod is attached to one.
	Customer string
	// Description is optional.
	Description string
	// Redirects says that the customer can be sent to a page.
	Redirects bool
}

// CreateIntent creates an intent that holds its payment method and is not
// confirmed. No money moves until it is confirmed.
//
// A [RejectedError] means that the provider does not accept the payment method,
// the customer, the amount or the currency.
func (c *Client) CreateIntent(ctx context.Context, key string, p CreateParams) (in Intent, err error) {
	defer wrap(&err, "create payment intent for", p.Reference)
	amount, err := sentAmount(p.Amount, p.Currency)
	if err := cmp.Or(checkKey(key), err); err != nil {
		return Intent{}, err
	}
	redirects := "never"
	if p.Redirects {
		redirects = "always"
	}
	params := &stripego.PaymentIntentCreateParams{
		Amount:        new(amount),
		Currency:      stripego.String(strings.ToLower(p.Currency)),
		PaymentMethod: stripego.String(p.PaymentMethod),
		AutomaticPaymentMethods: &stripego.PaymentIntentCreateAutomaticPaymentMethodsParams{
			Enabled:        new(true),
			AllowRedirects: stripego.String(redirects),
		},
		Metadata: map[string]string{metadataReference: p.Reference},
	}
	params.Headers = http.Header{headerCharge: {p.ChargeID}}
	if p.Customer != "" {
		params.Customer = stripego.String(p.Customer)
	}
	if p.Description != "" {
		params.Description = stripego.String(p.Description)
	}
	params.SetIdempotencyKey(key)
	return ask(ctx, c, func(ctx context.Context) (*stripego.PaymentIntent, error) {
		return c.api.V1PaymentIntents.Create(ctx, params)
	}, intentOf)
}

// ConfirmIntent attempts the payment with the payment method that the intent
// holds. It sends none of its own, so it cannot attempt a declined intent again.
// Without a return URL the customer is absent, so an issuer that asks for authentication
// thereby declines: [DeclinedError]. With one, the intent is then in [RequiresAction].
//
// A [RejectedError] with [CodeUnexpectedState] says that the intent cannot be
// confirmed now; it may have succeeded before. CancelIntent shows its state.
func (c *Client) ConfirmIntent(ctx context.Context, key, id, returnURL string) (in Intent, err error) {
	defer wrap(&err, "confirm payment intent", id)
	if err := checkKey(key); err != nil {
		return Intent{}, err
	}
	params := &stripego.PaymentIntentConfirmParams{
		OffSession:            new(true),
		ErrorOnRequiresAction: new(true),
	}
	if returnURL != "" {
		params = &stripego.PaymentIntentConfirmParams{ReturnURL: &returnURL}
	}
	params.SetIdempotencyKey(key)
	return c.intent(ctx, id, func(ctx context.Context) (*stripego.PaymentIntent, error) {
		return c.api.V1PaymentIntents.Confirm(ctx, id, params)
	})
}

// RetrieveIntent returns the intent as it is now. It changes nothing.
func (c *Client) RetrieveIntent(ctx context.Context, id string) (in Intent, err error) {
	defer wrap(&err, "retrieve payment intent", id)
	return c.retrieve(ctx, id)
}

func (c *Client) retrieve(ctx context.Context, id string) (Intent, error) {
	return c.intent(ctx, id, func(ctx context.Context) (*stripego.PaymentIntent, error) {
		return c.api.V1PaymentIntents.Retrieve(ctx, id, &stripego.PaymentIntentRetrieveParams{})
	})
}

// CancelIntent cancels the intent and returns it as it is afterwards. After
// [Canceled] no money can move, even if a confirmation is in flight. It is no
// error that the intent was canceled before, nor that the provider refuses because
// of the intent's state: Status is then [Succeeded] or [Processing].
//
// The request has a random key: it is idempotent by its nature, and must not
// meet a saved answer that was true earlier.
func (c *Client) CancelIntent(ctx context.Context, id string) (in Intent, err error) {
	defer wrap(&err, "cancel payment intent", id)
	params := &stripego.PaymentIntentCancelParams{}
	params.SetIdempotencyKey("cancel_" + rand.Text())
	in, err = c.intent(ctx, id, func(ctx context.Context) (*stripego.PaymentIntent, error) {
		return c.api.V1PaymentIntents.Cancel(ctx, id, params)
	})
	var rejected *RejectedError
	if !errors.As(err, &rejected) || rejected.Code != CodeUnexpectedState {
		return in, err
	}
	if rejected.Intent.ID == id {
		return rejected.Intent, nil
	}
	return c.retrieve(ctx, id)
}

// intent runs a call about the intent id. An answer about another intent is not
// understood, whether it is a success or a decline.
func (c *Client) intent(ctx context.Context, id string, send func(context.Context) (*stripego.PaymentIntent, error)) (Intent, error) {
	if err := checkID(id); err != nil {
		return Intent{}, err
	}
	in, err := ask(ctx, c, send, intentOf)
	answered := in.ID
	if declined, ok := errors.AsType[*DeclinedError](err); ok {
		answered = declined.Intent.ID
	}
	if answered != "" && answered != id {
		return Intent{}, unavailable(fmt.Errorf("the answer is about payment intent %s", answered))
	}
	return in, err
}

// Intents returns every intent of the account, newest first, in pages of a hundred. An error ends
// the sequence; a list that has an intent twice is [UnavailableError]. Of an intent of other origin
// that cannot be read it has the ID alone.
func (c *Client) Intents(ctx context.Context) iter.Seq2[Intent, error] {
	return pages(ctx, c, "list payment intents of", "", listedIntentOf,
		func(ctx context.Context, p stripego.ListParams, _ *string) *stripego.V1List[*stripego.PaymentIntent] {
			return c.api.V1PaymentIntents.List(ctx, &stripego.PaymentIntentListParams{ListParams: p})
		})
}

func (in Intent) id() string { return in.ID }

// listedIntentOf keeps what others make in the account from ending a list.
func listedIntentOf(pi *stripego.PaymentIntent) (Intent, error) {
	in, err := intentOf(pi)
	if err != nil && referenceOf(pi) == "" && pi.Object == "payment_intent" && checkID(pi.ID) == nil {
		return Intent{ID: pi.ID}, nil
	}
	return in, err
}

func referenceOf(pi *stripego.PaymentIntent) string {
	return pi.Metadata[metadataReference]
}

// intentOf reads an intent and checks that it is one: stripe-go parses every JSON
// object into it.
func intentOf(pi *stripego.PaymentIntent) (Intent, error) {
	in := Intent{
		ID:        pi.ID,
		Status:    Status(pi.Status),
		Currency:  strings.ToUpper(string(pi.Currency)),
		Reference: referenceOf(pi),
		Attempted: pi.LastPaymentError != nil || pi.LatestCharge != nil,
		Created:   time.Unix(pi.Created, 0).UTC(),
	}
	if pi.LastPaymentError != nil {
		d := declineOf(pi.LastPaymentError)
		in.Decline = &d
	}
	if next := pi.NextAction; next != nil && next.RedirectToURL != nil {
		in.RedirectURL = pageOf(next.RedirectToURL.URL)
	}
	if pi.Object != "payment_intent" || checkID(in.ID) != nil || in.Currency == "" {
		return Intent{}, errors.New("the answer holds no payment intent")
	}
	var err, errReceived error
	in.Amount, err = receivedAmount(pi.Amount, in.Currency)
	in.AmountReceived, errReceived = receivedAmount(pi.AmountReceived, in.Currency)
	switch in.Status {
	case RequiresPaymentMethod, RequiresConfirmation, RequiresAction, Processing, RequiresCapture, Succeeded, Canceled:
	default:
		err = fmt.Errorf("it is in the unknown state %q", in.Status)
	}
	if err := cmp.Or(err, errReceived); err != nil {
		return Intent{}, fmt.Errorf("payment intent %s: %w", in.ID, err)
	}
	return in, nil
}

// maxURL bounds what is kept of the provider's URLs, in bytes.
const maxURL = 4096

// pageOf returns the URL of a page of the provider, empty if it is none that a browser could
// be sent to.
func pageOf(page string) string {
	u, err := url.Parse(page)
	if err != nil || len(page) > maxURL || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return ""
	}
	return page
}

func declineOf(e *stripego.Error) Decline {
	return Decline{Code: text(string(e.Code)), DeclineCode: text(string(e.DeclineCode)), Message: text(e.Msg)}
}

// stripeUnits holds the currencies whose minor unit at Stripe is not ISO 4217's.
// Source: https://docs.stripe.com/currencies, "Zero-decimal currencies" and "Special
// cases": ISK and UGX have no decimals, but are sent with two that are 0; MGA is
// zero-decimal. HUF and TWD are special in payouts alone, which payonce does not
// make. BHD, JOD, KWD, OMR and TND have three, as in ISO 4217, the last of them 0:
// domain.Currency.Increment keeps others out.
var stripeUnits = map[string]unit{"ISK": {sent: 100}, "UGX": {sent: 100}, "MGA": {iso: 100}}

// unit says how many minor units of Stripe (sent) are how many of ISO 4217 (iso);
// 0 stands for 1.
type unit struct{ sent, iso int64 }

func unitOf(currency string) (sent, iso int64) {
	u := stripeUnits[strings.ToUpper(currency)]
	return cmp.Or(u.sent, 1), cmp.Or(u.iso, 1)
}

// sentAmount converts ISO 4217 minor units to Stripe's. An amount that Stripe cannot
// hold is a [RejectedError].
func sentAmount(amount int64, currency string) (int64, error) {
	sent, iso := unitOf(currency)
	converted, err := convert(amount, iso, sent)
	if err != nil || currency == "" {
		return 0, unsent(fmt.Sprintf("%d %q is no amount of the provider's", amount, currency))
	}
	return converted, nil
}

// receivedAmount converts Stripe's minor units to those of ISO 4217.
func receivedAmount(amount int64, currency string) (int64, error) {
	sent, iso := unitOf(currency)
	converted, err := convert(amount, sent, iso)
	if err != nil {
		return 0, fmt.Errorf("%d %s: %w", amount, currency, err)
	}
	return converted, nil
}

func convert(amount, from, to int64) (int64, error) {
	if amount%from != 0 || amount/from > math.MaxInt64/to {
		return 0, errors.New("it is no whole amount in ISO 4217 minor units")
	}
	return amount / from * to, nil
}
