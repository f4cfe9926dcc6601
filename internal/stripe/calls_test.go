package stripe_test

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bojanz/currency"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testrun"
)

// Each call sends its key and its parameters, and reads what it gets. A confirmation sends
// no payment method.
func TestCall_sendsItsParameters(t *testing.T) {
	t.Parallel()
	created := time.Unix(1700000000, 0).UTC()
	for name, tc := range map[string]struct {
		answer string
		call   func(context.Context, *stripe.Client) (any, error)
		want   any
		sent   sent
	}{
		"create": {
			intentJSON(),
			func(ctx context.Context, c *stripe.Client) (any, error) {
				p := createParams("pm_card_visa")
				p.Customer, p.Redirects = "cus_ada", true
				return c.CreateIntent(ctx, "evt_1", p)
			},
			stripe.Intent{ID: "pi_1", Status: stripe.RequiresConfirmation, Amount: 1999, Currency: "EUR", Reference: "ch_1", Created: created},
			sent{"POST /v1/payment_intents", url.Values{
				"amount": {"1999"}, "currency": {"eur"}, "payment_method": {"pm_card_visa"}, "description": {"order 7"}, "customer": {"cus_ada"},
				"automatic_payment_methods[enabled]": {"true"}, "automatic_payment_methods[allow_redirects]": {"always"},
				"metadata[charge_reference]": {"ch_1"},
			}, "evt_1"},
		},
		"confirm": {
			intentJSON("status", "succeeded", "amount_received", 1999, "latest_charge", "ch_provider"),
			func(ctx context.Context, c *stripe.Client) (any, error) {
				return c.ConfirmIntent(ctx, "evt_2", "pi_1", "")
			},
			stripe.Intent{
				ID: "pi_1", Status: stripe.Succeeded, Amount: 1999, AmountReceived: 1999, Currency: "EUR", Reference: "ch_1",
				Attempted: true, Created: created,
			},
			sent{"POST /v1/payment_intents/pi_1/confirm", url.Values{"off_session": {"true"}, "error_on_requires_action": {"true"}}, "evt_2"},
		},
		"confirm with a page for the customer": {
			intentJSON("status", "requires_action", "next_action",
				map[string]any{"type": "redirect_to_url", "redirect_to_url": map[string]any{"url": "https://bank.example/3ds"}}),
			func(ctx context.Context, c *stripe.Client) (any, error) {
				return c.ConfirmIntent(ctx, "evt_2", "pi_1", "https://shop.example/back")
			},
			stripe.Intent{
				ID: "pi_1", Status: stripe.RequiresAction, Amount: 1999, Currency: "EUR", Reference: "ch_1",
				RedirectURL: "https://bank.example/3ds", Created: created,
			},
			sent{"POST /v1/payment_intents/pi_1/confirm", url.Values{"return_url": {"https://shop.example/back"}}, "evt_2"},
		},
		"create refund": {
			refundJSON("status", "pending"),
			func(ctx context.Context, c *stripe.Client) (any, error) {
				return c.CreateRefund(ctx, "evt_3", refundParams("pi_1"))
			},
			stripe.Refund{ID: "re_1", PaymentIntent: "pi_1", Reference: "re_ours", Status: stripe.RefundPending, Amount: 500, Currency: "EUR"},
			sent{"POST /v1/refunds", url.Values{"payment_intent": {"pi_1"}, "amount": {"500"}, "metadata[refund_id]": {"re_ours"}}, "evt_3"},
		},
		"refunds of an intent, of which one has no status": {
			list(false, refundJSON("status", nil)),
			func(ctx context.Context, c *stripe.Client) (any, error) { return collect(c.Refunds(ctx, "pi_1")) },
			[]stripe.Refund{{ID: "re_1", PaymentIntent: "pi_1", Reference: "re_ours", Amount: 500, Currency: "EUR"}},
			sent{"GET /v1/refunds", url.Values{"payment_intent": {"pi_1"}, "limit": {"100"}}, ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, answer(200, tc.answer))
			got, err := tc.call(t.Context(), newClient(t, p.URL, 0))
			testrun.Must(t, err)
			testrun.Same(t, "the value", tc.want, got)
			testrun.Same(t, "sent", []sent{tc.sent}, p.got())
		})
	}
}

// An intent without a payment method and one that was declined have the same
// status: only what an attempt leaves behind tells them apart.
func TestRetrieveIntent_tellsADeclinedIntentFromANewOne(t *testing.T) {
	t.Parallel()
	failure := map[string]any{"type": "card_error", "code": "card_declined", "decline_code": "lost_card", "message": "for people"}
	for name, tc := range map[string]struct {
		body      string
		attempted bool
		decline   *stripe.Decline
	}{
		"never attempted":         {intentJSON("status", "requires_payment_method"), false, nil},
		"declined, cleared since": {intentJSON("status", "requires_payment_method", "latest_charge", "ch_x"), true, nil},
		"declined without a charge": {
			intentJSON("status", "requires_payment_method", "last_payment_error", failure),
			true, &stripe.Decline{Code: "card_declined", DeclineCode: "lost_card", Message: "for people"},
		},
		"with the charge written out": {intentJSON("status", "succeeded", "latest_charge", map[string]any{"id": "ch_x", "object": "charge"}), true, nil},
	} {
		got, err := newClient(t, newProvider(t, answer(200, tc.body)).URL, 0).RetrieveIntent(t.Context(), "pi_1")
		if err != nil || got.Attempted != tc.attempted {
			t.Errorf("%s: attempted is %t, want %t: %v", name, got.Attempted, tc.attempted, err)
		}
		testrun.Same(t, name, tc.decline, got.Decline)
	}
}

// A cancellation of an intent that cannot be canceled is no error: the intent is retrieved. Each has a
// key of its own, and no parameter.
func TestCancelIntent(t *testing.T) {
	t.Parallel()
	const cancel, retrieve = "POST /v1/payment_intents/pi_1/cancel", "GET /v1/payment_intents/pi_1"
	succeeded := answer(200, intentJSON("status", "succeeded"))
	for name, tc := range map[string]struct {
		canceled http.HandlerFunc
		want     []string
	}{
		"an open intent": {succeeded, []string{cancel}},
		"an intent that was": {
			answer(400, errorJSON("invalid_request_error", "payment_intent_unexpected_state")), []string{cancel, retrieve},
		},
	} {
		p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
			map[string]http.HandlerFunc{http.MethodPost: tc.canceled, http.MethodGet: succeeded}[r.Method](w, r)
		})
		c := newClient(t, p.URL, 0)
		for range 2 {
			if got, err := c.CancelIntent(t.Context(), "pi_1"); err != nil || got.ID != "pi_1" || got.Status != stripe.Succeeded {
				t.Errorf("%s: the intent is %s %s, %v", name, got.ID, got.Status, err)
			}
		}
		var requests []string
		for _, s := range p.got() {
			requests = append(requests, s.Request+s.Form.Encode())
		}
		testrun.Same(t, name+": sent", slices.Repeat(tc.want, 2), requests)
		if first, second := p.got()[0].Key, p.got()[len(tc.want)].Key; first == second || len(first) < 26 {
			t.Errorf("keys are %q and %q", first, second)
		}
	}
}

// echo is a client of a provider that holds every intent and refund as it was asked for. sent is the amount that
// it received last.
func echo(t *testing.T, code string) (c *stripe.Client, sent *int64) {
	t.Helper()
	sent, code = new(int64), strings.ToLower(code)
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
		*sent, _ = strconv.ParseInt(r.FormValue("amount"), 10, 64)
		body := intentJSON("amount", *sent, "amount_received", *sent, "currency", code)
		if strings.HasSuffix(r.URL.Path, "/refunds") {
			body = refundJSON("amount", *sent, "currency", code)
		}
		answer(http.StatusOK, body)(w, r)
	})
	return newClient(t, p.URL, 0), sent
}

// An amount that is sent comes back as it was, of an intent and of a refund. The amounts on the wire are from
// https://docs.stripe.com/currencies; the client can send every amount that passes the API's rule.
func TestClient_convertsAmountsBothWays(t *testing.T) {
	t.Parallel()
	converted := map[string]struct{ amount, sent int64 }{
		"ISK": {1000, 100000}, "UGX": {1000, 100000}, // two decimals that are 0
		"MGA": {1000, 10}, // zero-decimal
	}
	for _, code := range currency.GetCurrencyCodes() {
		test := converted[code]
		if test.sent == 0 {
			test.amount = 7 * domain.Currency(code).Increment()
			test.sent = test.amount
		}
		c, sent := echo(t, code)
		in, err := c.CreateIntent(t.Context(), "create", stripe.CreateParams{Reference: "ch_1", Amount: test.amount, Currency: code, PaymentMethod: "pm_card_visa"})
		if err != nil || *sent != test.sent || in.Amount != test.amount || in.AmountReceived != test.amount || in.Currency != code {
			t.Errorf("the intent over %d %s is sent as %d and read as %+v, %v", test.amount, code, *sent, in, err)
		}
		r, err := c.CreateRefund(t.Context(), "refund", stripe.RefundParams{Reference: "re_1", PaymentIntent: "pi_1", Amount: test.amount, Currency: code})
		if err != nil || *sent != test.sent || r.Amount != test.amount || r.Currency != code {
			t.Errorf("the refund of %d %s is sent as %d and read as %+v, %v", test.amount, code, *sent, r, err)
		}
	}
	for code, amount := range map[string]int64{"MGA": 1050, "": 1000} {
		c, sent := echo(t, code)
		_, err := c.CreateIntent(t.Context(), "create", stripe.CreateParams{Reference: "ch_1", Amount: amount, Currency: code})
		_, errRefund := c.CreateRefund(t.Context(), "refund", stripe.RefundParams{PaymentIntent: "pi_1", Amount: amount, Currency: code})
		if kind(err) != "rejected" || kind(errRefund) != "rejected" || *sent != 0 {
			t.Errorf("%d %q: %v and %v, want both rejected; sent is %d", amount, code, err, errRefund, *sent)
		}
	}
}

// Where Stripe's page gives the decimals of a currency, the library's ISO 4217 list
// has the same, or stripeUnits converts it.
func TestMinorUnits_areThoseOfStripesList(t *testing.T) {
	t.Parallel()
	const (
		zero  = "BIF CLP DJF GNF JPY KMF KRW PYG RWF VND VUV XAF XOF XPF" // and MGA, and UGX, which is sent with two
		three = "BHD JOD KWD OMR TND"
	)
	for digits, codes := range map[uint8]string{0: zero + " ISK UGX", 2: "MGA HUF TWD", 3: three} {
		for code := range strings.FieldsSeq(codes) {
			if got, known := currency.GetDigits(code); got != digits || !known {
				t.Errorf("%s has %d decimals in ISO 4217 as the library has it, want %d: check stripeUnits", code, got, digits)
			}
		}
	}
}
