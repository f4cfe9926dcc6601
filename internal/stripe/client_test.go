package stripe_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bojanz/currency"
	stripego "github.com/stripe/stripe-go/v85"

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

func TestNew_refusesUnusableSettings(t *testing.T) {
	t.Parallel()
	for _, cfg := range []stripe.Config{
		{SecretKey: "sk_live_x"},
		{SecretKey: "sk_live_x", Base: "https://api.stripe.com"},
		{SecretKey: "sk_test_x", Base: "http://127.0.0.1:8090/"},
		{SecretKey: "sk_test_x", Base: "http://sandbox:8090", Timeout: time.Second},
	} {
		_, err := stripe.New(cfg)
		testrun.Must(t, err)
	}
	of := func(base string) stripe.Config { return stripe.Config{SecretKey: "sk_test_hush", Base: base} }
	for says, refused := range map[string][]stripe.Config{
		"STRIPE_SECRET_KEY": {{}, {SecretKey: "sk_test_hush\n"}},
		"STRIPE_API_BASE": {
			of("https://api.stripe.com/v1"), of("https://api.stripe.com/?x"), of("https://api.stripe.com/#v1"), of("api.stripe.com"),
			of("ftp://api.stripe.com"), of("https://:443"), of("http://%zz"), of("https://me:hush@api.stripe.com"),
		},
		"https://":       {{SecretKey: "sk_live_hush", Base: "http://api.stripe.com"}, {SecretKey: "rk_live_hush", Base: "http://api.stripe.com"}},
		"STRIPE_ACCOUNT": {{SecretKey: "sk_test_hush", Account: "me"}},
	} {
		for _, cfg := range refused {
			if _, err := stripe.New(cfg); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hush") {
				t.Errorf("%+v: error is %v, want one that names %s and no secret", cfg, err, says)
			}
		}
	}
}

type callers struct{}

// The observer learns every request once, by a name that holds no id, and its answer. What is read has these parameters.
func TestClient_reportsEachRequestToItsObserver(t *testing.T) {
	t.Parallel()
	saved, refused := answer(200, intentJSON(), "Idempotent-Replayed", "true"), answer(400, errorJSON("invalid_request_error", ""))
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
		map[string]http.HandlerFunc{http.MethodPost: saved, http.MethodGet: refused}[r.Method](w, r)
	})
	want, seen, reported := map[string]stripe.Answered{}, map[string]stripe.Answered{}, 0
	for _, call := range stripe.Calls() {
		want[call] = stripe.Answered{Status: 400}
		if strings.HasPrefix(call, http.MethodPost) {
			want[call] = stripe.Answered{Status: 200, Replayed: true}
		}
	}
	cfg := stripe.Config{SecretKey: secretKey, Base: p.URL, Observe: func(ctx context.Context, call string) func(stripe.Answered) {
		if ctx.Value(callers{}) == nil {
			t.Errorf("%s is observed in another context than the caller's", call)
		}
		return func(a stripe.Answered) { seen[call] = a; reported++ }
	}}
	c, err := stripe.New(cfg)
	testrun.Must(t, err)
	defer c.Close()

	ctx := context.WithValue(t.Context(), callers{}, true)
	for _, call := range calls(c) {
		_, _ = call(ctx)
	}
	_, _ = c.Account(ctx)
	testrun.Same(t, "calls", want, seen)
	testrun.Same(t, "calls that are reported", p.requests(), reported)
	var read []string
	for _, s := range p.got() {
		if strings.HasPrefix(s.Request, http.MethodGet) {
			read = append(read, s.Request+"?"+s.Form.Encode())
		}
	}
	slices.Sort(read)
	testrun.Same(t, "what is read", []string{
		"GET /v1/account?", "GET /v1/disputes?limit=100", "GET /v1/disputes?limit=100&payment_intent=pi_1",
		"GET /v1/payment_intents/pi_1?", "GET /v1/payment_intents?limit=100",
		"GET /v1/refunds?limit=100", "GET /v1/refunds?limit=100&payment_intent=pi_1",
	}, read)
	cfg.Base = noServer
	away, err := stripe.New(cfg)
	testrun.Must(t, err)
	defer away.Close()
	_, _ = away.Account(ctx)
	testrun.Same(t, "a call without an answer", stripe.Answered{}, seen["GET account"])
}

// TestCall_isSentOnceOnAReusedConnectionThatIsCut: the provider answers the first request, and cuts
// the connection, which then is a reused one, at the others. Each has the key, and no telemetry.
func TestCall_isSentOnceOnAReusedConnectionThatIsCut(t *testing.T) {
	t.Parallel()
	for name := range calls(nil) {
		var p *provider
		p = newProvider(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Stripe-Client-Telemetry") != "" || r.Header.Get("Authorization") != "Bearer "+secretKey {
				t.Errorf("%s: headers %v", name, r.Header)
			}
			if p.requests() == 1 {
				answer(200, intentJSON())(w, r)
				return
			}
			cut("")(w, r)
		})
		c := newClient(t, p.URL, 0)
		_, err := c.RetrieveIntent(t.Context(), "pi_1")
		testrun.Must(t, err)
		zero, err := calls(c)[name](t.Context())
		if kind(err) != "unavailable" || !zero {
			t.Errorf("%s: error %v, zero value %t, want unavailable and true", name, err, zero)
		}
		if got := p.requests(); got != 2 {
			t.Errorf("%s: the provider saw %d requests, want 2", name, got)
		}
	}
	if stripego.Key != "" {
		t.Error("stripe-go's package-level key was set")
	}
}

// A call whose key or id cannot be sent reaches no path at all: stripe-go would
// make a key up, trim it, or turn a retrieve into a list.
func TestCall_withAnUnusableKeyOrIDIsNotSent(t *testing.T) {
	t.Parallel()
	p := newProvider(t, answer(200, intentJSON()))
	c := newClient(t, p.URL, 0)
	ctx, errOf := t.Context(), func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"no key":                  errOf(c.ConfirmIntent(ctx, "", "pi_1", "")),
		"a key with a space":      errOf(c.ConfirmIntent(ctx, " key", "pi_1", "")),
		"an intent without an id": errOf(c.RetrieveIntent(ctx, "")),
		"an id with a space":      errOf(c.RetrieveIntent(ctx, "pi_1 ")),
		"a confirmation of none":  errOf(c.ConfirmIntent(ctx, "key_1", "", "")),
		"a cancellation of none":  errOf(c.CancelIntent(ctx, "")),
		"a refund of no intent":   errOf(c.CreateRefund(ctx, "key_1", refundParams(""))),
		"a refund without a key":  errOf(c.CreateRefund(ctx, "", refundParams("pi_1"))),
	} {
		if kind(err) != "rejected" {
			t.Errorf("%s: %v, want a rejection", name, err)
		}
	}
	if got := p.requests(); got != 0 {
		t.Errorf("%d requests were sent, want none", got)
	}
}

// listing serves n objects in pages, newest first, as the provider does.
func listing(n int, object func(id string) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
		if err != nil || limit > 100 {
			answer(400, errorJSON("invalid_request_error", "parameter_invalid_integer"))(w, r)
			return
		}
		next := n
		if after := r.URL.Query().Get("starting_after"); after != "" {
			next, _ = strconv.Atoi(after[strings.Index(after, "_")+1:])
			next--
		}
		var data []string
		for ; next > 0 && len(data) < limit; next-- {
			data = append(data, object(strconv.Itoa(next)))
		}
		answer(200, list(next > 0, data...))(w, r)
	}
}

func list(more bool, data ...string) string {
	return fmt.Sprintf(`{"object":"list","url":"/v1/x","has_more":%t,"data":[%s]}`, more, strings.Join(data, ","))
}

func TestIntents_areListedOnceAndOnlyAsNeeded(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 100, 101, 250} {
		p := newProvider(t, listing(n, func(id string) string { return intentJSON("id", "pi_"+id) }))
		seq := newClient(t, p.URL, 0).Intents(t.Context())
		if zero, err := first(seq); err != nil || zero != (n == 0) || p.requests() != 1 {
			t.Errorf("%d: the first is missing: %t after %d requests, %v", n, zero, p.requests(), err)
		}
		all, err := collect(seq)
		if requests := p.requests() - 1; err != nil || len(all) != n || requests != max(1, (n+99)/100) {
			t.Fatalf("%d of %d are listed in %d requests, %v", len(all), n, requests, err)
		}
		for i, in := range all {
			if want := "pi_" + strconv.Itoa(n-i); in.ID != want || in.Reference != "ch_1" {
				t.Fatalf("intent is %s of %s, want %s of ch_1", in.ID, in.Reference, want)
			}
		}
	}
}

// A page without an answer does not throw away what was read before it.
func TestIntents_continueWhereTheyWere(t *testing.T) {
	testrun.Long(t, "it waits between tries")
	t.Parallel()
	for name, refused := range map[string]http.HandlerFunc{
		"a refusal": answer(429, errorJSON("invalid_request_error", "rate_limit")),
		"a failure": answer(500, errorJSON("api_error", "")), "a cut": cut(""),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p *provider
			p = newProvider(t, func(w http.ResponseWriter, r *http.Request) {
				if p.requests() == 2 {
					refused(w, r)
					return
				}
				listing(150, func(id string) string { return intentJSON("id", "pi_"+id, "status", "of the future", "metadata", nil) })(w, r)
			})
			all, err := collect(newClient(t, p.URL, 0).Intents(t.Context()))
			if err != nil || len(all) != 150 || p.requests() != 3 {
				t.Errorf("%d are listed in %d requests, %v", len(all), p.requests(), err)
			}
		})
	}
}

// A failure, or an answer that is no list, never passes for the end of a list, and a list without
// an end does not keep its reader for ever.
func TestRefunds_endWithTheErrorOfAPage(t *testing.T) {
	t.Parallel()
	refund := func(n int) string { return refundJSON("id", fmt.Sprintf("re_%d", n)) }
	for name, tc := range map[string]struct {
		pages    []string // the last one is repeated
		requests int      // until it is unavailable
		listed   int
	}{
		"an empty object":                         {[]string{`{}`}, 1, 0},
		"a list without data":                     {[]string{`{"object":"list","has_more":false}`}, 1, 0},
		"an empty page that promises more":        {[]string{list(true)}, 1, 0},
		"a second page that is no list":           {[]string{list(true, refund(1)), `{}`}, 2, 1},
		"that ignores the cursor":                 {[]string{list(true, refund(1), refund(2))}, 2, 2},
		"that goes round":                         {[]string{list(true, refund(1)), list(true, refund(2)), list(true, refund(1))}, 3, 2},
		"that turns back in the middle of a page": {[]string{list(true, refund(1), refund(2)), list(true, refund(3), refund(1))}, 2, 3},
		"that has one object twice in a page":     {[]string{list(false, refund(1), refund(1))}, 1, 1},
	} {
		asked := 0
		p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
			asked++
			if asked > tc.requests {
				answer(200, list(false))(w, r) // so that the test ends without the bound too
				return
			}
			answer(200, tc.pages[min(asked, len(tc.pages))-1])(w, r)
		})
		all, err := collect(newClient(t, p.URL, 0).Refunds(t.Context(), ""))
		if kind(err) != "unavailable" || len(all) != tc.listed || asked != tc.requests {
			t.Errorf("%s: %d were listed in %d requests before %v, want %d in %d and then that it is unavailable",
				name, len(all), asked, err, tc.listed, tc.requests)
		}
	}
}
