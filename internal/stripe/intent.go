package stripe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"

	stripego "github.com/stripe/stripe-go/v85"
)

// Status is the state of a payment intent. A state that is not listed here is one that the
// caller does not know either.
type Status string

// The states of a payment intent.
const (
	// RequiresPaymentMethod is the state after a declined attempt, and also of
	// an intent that never had a payment method: see [Intent.Attempted].
	RequiresPaymentMethod Status = "requires_payment_method"
	// RequiresConfirmation is the state after CreateIntent, until the first
	// attempt.
	RequiresConfirmation Status = "requires_confirmation"
	RequiresAction       Status = "requires_action"
	Processing           Status = "processing"
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
	ID             string
	Status         Status
	Amount         int64  // to be captured, in minor units of ISO 4217
	AmountReceived int64  // in minor units of ISO 4217
	Currency       string // upper case
	Reference      string // names our charge (metadata charge_reference), empty on an intent of other origin
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

// Decline is why a card was declined, or a request refused. Each part may be empty.
type Decline struct {
	Code        string // the provider's word for it, mostly "card_declined"
	DeclineCode string // the issuer's reason, "insufficient_funds" for example
	Message     string // the provider's, for people
}

// AuthenticationRequired reports whether the issuer wanted the customer, who is
// absent, to authenticate.
func (d Decline) AuthenticationRequired() bool {
	codes := []stripego.ErrorCode{
		stripego.ErrorCodeAuthenticationRequired, stripego.ErrorCodePaymentIntentAuthenticationFailure, "requires_action_not_handled",
	}
	return slices.Contains(codes, stripego.ErrorCode(d.Code)) || d.DeclineCode == string(stripego.DeclineCodeAuthenticationRequired)
}

// OfTestKey reports whether a live card was declined because the secret key is a test key.
func (d Decline) OfTestKey() bool { return d.DeclineCode == "test_mode_live_card" }

func (d Decline) String() string {
	return strings.Join(slices.DeleteFunc([]string{d.Code, d.DeclineCode, d.Message}, func(part string) bool { return part == "" }), ": ")
}

// CreateParams describe the intent of one charge.
type CreateParams struct {
	Reference     string // names our charge at the provider
	ChargeID      string // is no parameter: the provider ignores it
	Amount        int64  // in ISO 4217 minor units of Currency
	Currency      string
	PaymentMethod string
	Customer      string // the provider's, needed where PaymentMethod is attached to one
	Description   string
	Redirects     bool // the customer can be sent to a page
}

// CreateIntent creates an intent that holds its payment method and is not
// confirmed. No money moves until it is confirmed.
//
// Rejected means that the provider does not accept the payment method,
// the customer, the amount or the currency.
func (c *Client) CreateIntent(ctx context.Context, key string, p CreateParams) (in Intent, err error) {
	defer wrap(&err, "create payment intent for", p.Reference)
	amount, err := sentAmount(p.Amount, p.Currency)
	if err := cmp.Or(checkNames(key), err); err != nil {
		return Intent{}, err
	}
	params := &stripego.PaymentIntentCreateParams{
		Amount:        new(amount),
		Currency:      stripego.String(strings.ToLower(p.Currency)),
		PaymentMethod: stripego.String(p.PaymentMethod),
		AutomaticPaymentMethods: &stripego.PaymentIntentCreateAutomaticPaymentMethodsParams{
			Enabled:        new(true),
			AllowRedirects: new(map[bool]string{true: "always", false: "never"}[p.Redirects]),
		},
		Metadata:    map[string]string{metadataReference: p.Reference},
		Customer:    given(p.Customer),
		Description: given(p.Description),
	}
	params.Headers = http.Header{headerCharge: {p.ChargeID}}
	params.SetIdempotencyKey(key)
	return ask(ctx, c, func(ctx context.Context) (*stripego.PaymentIntent, error) {
		return c.api.V1PaymentIntents.Create(ctx, params)
	}, intentOf)
}

// ConfirmIntent attempts the payment with the payment method that the intent
// holds. It sends none of its own, so it cannot attempt a declined intent again.
// Without a return URL the customer is absent, so an issuer that asks for authentication
// thereby declines. With one, the intent is then in [RequiresAction].
//
// Rejected says that the intent cannot be confirmed now; it may have succeeded before.
func (c *Client) ConfirmIntent(ctx context.Context, key, id, returnURL string) (in Intent, err error) {
	defer wrap(&err, "confirm payment intent", id)
	if err := checkNames(key); err != nil {
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
	return c.intent(ctx, id, func(ctx context.Context) (*stripego.PaymentIntent, error) {
		return c.api.V1PaymentIntents.Retrieve(ctx, id, &stripego.PaymentIntentRetrieveParams{})
	})
}

// CancelIntent cancels the intent and returns it as it is afterwards. After
// [Canceled] no money can move, even if a confirmation is in flight. It is no
// error that the intent was canceled before, nor that the provider refuses because
// of the intent's state: Status is then [Succeeded] or [Processing].
//
// stripe-go sends a random key: the request is idempotent by its nature, and must not
// meet a saved answer that was true earlier.
func (c *Client) CancelIntent(ctx context.Context, id string) (in Intent, err error) {
	defer wrap(&err, "cancel payment intent", id)
	in, err = c.intent(ctx, id, func(ctx context.Context) (*stripego.PaymentIntent, error) {
		return c.api.V1PaymentIntents.Cancel(ctx, id, &stripego.PaymentIntentCancelParams{})
	})
	if e, ok := errors.AsType[*Error](err); ok && e.Why.Code == string(stripego.ErrorCodePaymentIntentUnexpectedState) {
		return c.RetrieveIntent(ctx, id)
	}
	return in, err
}

// intent runs a call about the intent id. A success that is about another intent is not understood.
func (c *Client) intent(ctx context.Context, id string, send func(context.Context) (*stripego.PaymentIntent, error)) (Intent, error) {
	if err := checkNames(id); err != nil {
		return Intent{}, err
	}
	return ask(ctx, c, send, func(sent *stripego.PaymentIntent) (Intent, error) {
		in, err := intentOf(sent)
		if err == nil && in.ID != id {
			err = fmt.Errorf("the answer is about payment intent %s", in.ID)
		}
		return in, err
	})
}

// Intents returns every intent of the account, newest first, in pages of a hundred. An error ends
// the sequence; a list that has an intent twice is Unavailable.
func (c *Client) Intents(ctx context.Context) iter.Seq2[Intent, error] {
	return pages(ctx, c, "list payment intents of the account", listedIntentOf, func(in Intent) string { return in.ID },
		func(ctx context.Context, p stripego.ListParams) *stripego.V1List[*stripego.PaymentIntent] {
			return c.api.V1PaymentIntents.List(ctx, &stripego.PaymentIntentListParams{ListParams: p})
		})
}

// listedIntentOf keeps what others make in the account from ending a list.
func listedIntentOf(pi *stripego.PaymentIntent) (Intent, error) {
	in, err := intentOf(pi)
	if err != nil && pi.Metadata[metadataReference] == "" && checkObject(pi.Object, "payment_intent", pi.ID) == nil {
		return Intent{ID: pi.ID}, nil
	}
	return in, err
}

func intentOf(pi *stripego.PaymentIntent) (Intent, error) {
	if err := checkObject(pi.Object, "payment_intent", pi.ID); err != nil {
		return Intent{}, err
	}
	in := Intent{
		ID:             pi.ID,
		Status:         Status(pi.Status),
		Amount:         pi.Amount,
		AmountReceived: pi.AmountReceived,
		Reference:      pi.Metadata[metadataReference],
		Attempted:      pi.LastPaymentError != nil || pi.LatestCharge != nil,
		Created:        time.Unix(pi.Created, 0).UTC(),
	}
	if pi.LastPaymentError != nil {
		in.Decline = new(declineOf(pi.LastPaymentError))
	}
	if next := pi.NextAction; next != nil && next.RedirectToURL != nil {
		in.RedirectURL = next.RedirectToURL.URL
	}
	var err error
	if in.Currency, err = convert(string(pi.Currency), false, &in.Amount, &in.AmountReceived); err != nil {
		return Intent{}, fmt.Errorf("payment intent %s: %w", in.ID, err)
	}
	return in, nil
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
var stripeUnits = map[string]struct{ sent, iso int64 }{"ISK": {100, 1}, "UGX": {100, 1}, "MGA": {1, 100}}

// sentAmount converts ISO 4217 minor units to Stripe's. An amount that Stripe cannot hold is Rejected.
func sentAmount(amount int64, currency string) (int64, error) {
	if _, err := convert(currency, true, &amount); err != nil {
		return 0, &Error{Kind: Rejected, Why: Decline{Message: err.Error()}}
	}
	return amount, nil
}

// convert converts amounts in place, to Stripe's minor units where they are to be sent, else to those of ISO 4217, and
// returns the currency in upper case. Each must be a whole number of 64 bits in both.
func convert(currency string, toSend bool, amounts ...*int64) (code string, err error) {
	code = strings.ToUpper(currency)
	u := stripeUnits[code]
	from, to := cmp.Or(u.sent, 1), cmp.Or(u.iso, 1) // both are 0 of a currency that is in no list
	if toSend {
		from, to = to, from
	}
	for _, amount := range amounts {
		whole := *amount / from
		if code == "" || *amount%from != 0 || whole*to/to != whole {
			return "", fmt.Errorf("%d %q is no whole amount in Stripe's minor units and those of ISO 4217", *amount, code)
		}
		*amount = whole * to
	}
	return code, nil
}
