package httpapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

const (
	stripePath = "/v1/webhooks/stripe" // has no API key: a signature stands for it

	maxEventType = 100 // characters
	maxReference = 255 // characters of an id
)

// stripeEvent is what is read of an event. The rest belongs to the provider and its
// customers: it is neither kept nor logged.
type stripeEvent struct {
	ID   string `json:"id"`
	Type string `json:"type"`
	Data struct {
		Object jsontext.Value `json:"object"`
	} `json:"data"`
}

// stripeObject is what an event is about: a payment intent, a charge, a refund or a dispute
// as the provider has it.
type stripeObject struct {
	Object        string `json:"object"`
	ID            string `json:"id"`
	PaymentIntent string `json:"payment_intent"`
}

// providerEvent is what is sent of an event. It is the same at each delivery, by which the inbox
// recognizes a repetition; the event is not.
type providerEvent struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	ChargeID string `json:"charge_id"`
	Object   string `json:"object"`
}

// receiveStripe is POST /v1/webhooks/stripe: it sends a signed event about one of our charges
// to the worker, whose inbox stores it once per event id. The event decides nothing. It wakes the
// charge, whose worker then asks the provider itself.
//
// An event that is of no use here is answered 200 too: the provider sends a refused one again.
func (a *API) receiveStripe(c echo.Context) (any, error) {
	body := exchangeOf(c).body
	signed, ahead := isSigned(c.Request().Header.Values(headerSignature), body, a.StripeSecrets, a.Now())
	if !signed {
		return nil, errNotSigned
	}
	if ahead.Abs() > signatureTolerance {
		exchangeOf(c).Result = EventClock
		return nil, errNotSigned.because(fmt.Sprintf("the signature is right, but made %s from this server's time: the server's clock is wrong, or the event is a replay", ahead.Abs()))
	}
	var e stripeEvent // read leniently: the provider may add members
	if json.Unmarshal(body, &e) != nil || !isReference(e.ID, maxReference) || !isReference(e.Type, maxEventType) {
		return nil, errNoEvent
	}
	if concernsPayments(e.Type) {
		if err := a.store(c, e); err != nil {
			return nil, err
		}
	}
	return map[string]bool{"received": true}, nil
}

var errNoEvent = errMalformed.because("the body is not an event")

// isEvent reports whether a request is to stripePath, whatever the method. Another spelling
// is a path that is not served, and so no exception either.
func isEvent(c echo.Context) bool { return c.Request().URL.EscapedPath() == stripePath }

// concernsPayments reports whether an event of this type may be about a payment, a refund or
// a dispute of ours. The receiver fulfillment takes the same ones: an event of another type would
// wait there for a newer worker.
var concernsPayments = regexp.MustCompile(
	`^(payment_intent\.|refund\.|charge\.dispute\.|charge\.refunded$|charge\.refund\.updated$)`).MatchString

// isReference reports whether s can be an id: visible ASCII of some length.
func isReference(s string, longest int) bool {
	return s != "" && len(s) <= longest && strings.IndexFunc(s, func(r rune) bool { return r < '!' || r > '~' }) < 0
}

// store commits the event to the outbox, for the receiver fulfillment, if it is about a charge of ours, found by
// the intent that the object is, or names. It has no API key and so no merchant: it acts as the merchant of that charge.
//
// If we die here: the provider has no answer and sends the event again. After the commit that
// is a second message of the same id, which the worker's inbox counts and which has no effect.
// Without the event, the worker finds what became of a payment or refund that it waits for by asking the provider, only
// later; a dispute or a refund made outside is then found by the audit alone.
// Test: TestStripeEvent.
func (a *API) store(c echo.Context, e stripeEvent) error {
	ctx := c.Request().Context()
	var o stripeObject
	if json.Unmarshal(e.Data.Object, &o) != nil || !isReference(o.ID, maxReference) {
		return errNoEvent
	}
	if o.Object == "payment_intent" {
		o.PaymentIntent = o.ID
	}
	if !isReference(o.PaymentIntent, maxReference) {
		return nil
	}
	charge, err := ledger.FindByPaymentIntent(ctx, a.DB, domain.Provider, o.PaymentIntent)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	payload, _ := json.Marshal(providerEvent{ID: e.ID, Type: e.Type, ChargeID: charge.StreamID, Object: o.ID}) // ASCII: it cannot fail
	b := &pgx.Batch{}
	err = outbox.Append(b, outbox.Message{
		Topic: domain.Topic, ID: e.ID, Type: "stripe." + e.Type, OrderingKey: charge.StreamID, Partition: charge.MerchantID,
		Payload: payload, Metadata: a.Carry(ctx),
	})
	if err == nil {
		err = a.DB.Tenant(charge.MerchantID).Commit(ctx, b)
	}
	if err == nil {
		exchangeOf(c).Result = EventSent
	}
	return err
}

// Stripe's scheme, as published: Stripe-Signature holds t=… and one v1=… per secret of the
// endpoint, v1 being HMAC-SHA256 over "t.body" under the whole text of the secret.
const (
	headerSignature    = "Stripe-Signature"
	signatureTolerance = 5 * time.Minute // both ways: a signature is neither eternal nor made ahead
)

// isSigned reports whether the header holds a signature of the body by one of the secrets, and how
// far ahead of now it was made: the caller refuses one that is older or newer than
// signatureTolerance. isSigned refuses what Stripe's own library refuses, a repeated header, and
// any header where no secret is set. Of several times the last one is signed. A v1 that is no
// signature is ignored, and so are other schemes.
func isSigned(headers []string, body []byte, secrets []string, now time.Time) (is bool, ahead time.Duration) {
	if len(headers) != 1 {
		return false, 0
	}
	var signed int64
	var signatures [][]byte
	for part := range strings.SplitSeq(headers[0], ",") {
		name, value, pair := strings.Cut(part, "=")
		if !pair || strings.Contains(value, "=") {
			return false, 0
		}
		var err error
		switch name {
		case "t":
			if signed, err = strconv.ParseInt(value, 10, 64); err != nil {
				return false, 0
			}
		case "v1":
			if s, err := hex.DecodeString(value); err == nil {
				signatures = append(signatures, s)
			}
		}
	}
	return slices.ContainsFunc(secrets, func(secret string) bool {
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, "%d.%s", signed, body)
		want := mac.Sum(nil)
		return secret != "" && slices.ContainsFunc(signatures, func(s []byte) bool { return hmac.Equal(want, s) })
	}), time.Unix(signed, 0).Sub(now)
}
