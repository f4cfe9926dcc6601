package sandbox_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/sandbox"
	"github.com/payonce/payonce/internal/testdb"
)

func TestRefusals(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	id := f.create("pm_card_visa")
	intents, confirm := "/v1/payment_intents", "/v1/payment_intents/"+id+"/confirm"

	for name, tc := range map[string]struct {
		path   string
		pairs  []string
		status int
		code   any
		param  any
	}{
		"no amount":                    {intents, []string{"currency", "eur"}, 400, "parameter_missing", "amount"},
		"no currency":                  {intents, []string{"amount", "100"}, 400, "parameter_missing", "currency"},
		"an amount of zero":            {intents, []string{"amount", "0", "currency", "eur"}, 400, "parameter_invalid_integer", "amount"},
		"a fractional amount":          {intents, []string{"amount", "1.5", "currency", "eur"}, 400, "parameter_invalid_integer", "amount"},
		"an amount too large":          {intents, []string{"amount", "1000000000001", "currency", "eur"}, 400, "amount_too_large", "amount"},
		"an amount below the minimum":  {intents, []string{"amount", "29", "currency", "gbp"}, 400, "amount_too_small", "amount"},
		"a currency of nowhere":        {intents, []string{"amount", "100", "currency", "xyz"}, 400, nil, "currency"},
		"two amounts":                  {intents, []string{"amount", "100", "amount", "200", "currency", "eur"}, 400, nil, "amount"},
		"a nested amount":              {intents, []string{"amount[x]", "1", "currency", "eur"}, 400, nil, "amount"},
		"an unknown payment method":    {intents, []string{"amount", "100", "currency", "eur", "payment_method", "pm_card_none"}, 400, "resource_missing", "payment_method"},
		"a live payment method":        {intents, []string{"amount", "100", "currency", "eur", "payment_method", "pm_liveMode"}, 400, "resource_missing", "payment_method"},
		"an empty payment method":      {intents, []string{"amount", "100", "currency", "eur", "payment_method", ""}, 400, "parameter_invalid_empty", "payment_method"},
		"no customer of Stripe's":      {intents, []string{"amount", "100", "currency", "eur", "customer", "ada"}, 400, "resource_missing", "customer"},
		"an empty customer":            {intents, []string{"amount", "100", "currency", "eur", "customer", ""}, 400, "parameter_invalid_empty", "customer"},
		"an unknown parameter":         {intents, []string{"amount", "100", "currency", "eur", "colour", "red"}, 400, "parameter_unknown", "colour"},
		"an expansion":                 {intents, []string{"amount", "100", "currency", "eur", "expand[]", "latest_charge"}, 400, "parameter_unknown", "expand[]"},
		"a manual capture":             {intents, []string{"amount", "100", "currency", "eur", "capture_method", "manual"}, 400, nil, "capture_method"},
		"confirm without a method":     {intents, []string{"amount", "100", "currency", "eur", "confirm", "true"}, 400, "parameter_missing", "payment_method"},
		"off_session without confirm":  {intents, []string{"amount", "100", "currency", "eur", "off_session", "true"}, 400, nil, "off_session"},
		"a boolean that is none":       {intents, []string{"amount", "100", "currency", "eur", "confirm", "yes"}, 400, nil, "confirm"},
		"flat metadata":                {intents, []string{"amount", "100", "currency", "eur", "metadata", "x"}, 400, nil, "metadata"},
		"a long metadata value":        {intents, []string{"amount", "100", "currency", "eur", "metadata[a]", strings.Repeat("x", 501)}, 400, nil, "metadata[a]"},
		"a long metadata key":          {intents, []string{"amount", "100", "currency", "eur", "metadata[" + strings.Repeat("x", 41) + "]", "x"}, 400, nil, "metadata[" + strings.Repeat("x", 41) + "]"},
		"a NUL":                        {intents, []string{"amount", "100", "currency", "eur", "description", "a\x00b"}, 400, nil, nil},
		"invalid UTF-8":                {intents, []string{"amount", "100", "currency", "eur", "description", "a\xffb"}, 400, nil, nil},
		"a body too large":             {intents, []string{"amount", "100", "currency", "eur", "description", strings.Repeat("x", 70_000)}, 400, nil, nil},
		"confirming with an unknown":   {confirm, []string{"payment_method", "pm_1"}, 400, "resource_missing", "payment_method"},
		"confirming no intent":         {"/v1/payment_intents/pi_none/confirm", nil, 404, "resource_missing", "intent"},
		"confirming no identifier":     {"/v1/payment_intents/%00%ff/confirm", nil, 404, "resource_missing", "intent"},
		"canceling no intent":          {"/v1/payment_intents/pi_none/cancel", nil, 404, "resource_missing", "intent"},
		"canceling for another reason": {"/v1/payment_intents/" + id + "/cancel", []string{"cancellation_reason", "mood"}, 400, nil, "cancellation_reason"},
		"refunding nothing":            {"/v1/refunds", nil, 400, "parameter_missing", "payment_intent"},
		"refunding both":               {"/v1/refunds", []string{"payment_intent", id, "charge", "ch_1"}, 400, nil, "charge"},
		"refunding no intent":          {"/v1/refunds", []string{"payment_intent", "pi_none"}, 400, "resource_missing", "payment_intent"},
		"refunding no charge":          {"/v1/refunds", []string{"charge", "ch_none"}, 400, "resource_missing", "charge"},
		"refunding zero":               {"/v1/refunds", []string{"payment_intent", id, "amount", "0"}, 400, "parameter_invalid_integer", "amount"},
		"an unknown call":              {"/v1/customers", nil, 404, nil, nil},
	} {
		t.Run(name+" is refused and its key stays free", func(t *testing.T) {
			t.Parallel()
			key := "refused: " + name
			for range 2 {
				a := f.post(tc.path, key, tc.pairs...)
				a.want(t, tc.status, map[string]any{
					"error.type": "invalid_request_error", "error.code": tc.code, "error.param": tc.param,
				})
				if a.text("error.message") == "" || a.header.Get("Idempotent-Replayed") != "" {
					t.Errorf("answered %v %s", a.header, a.raw)
				}
			}
			f.post("/v1/payment_intents", key, "amount", "100", "currency", "eur").
				want(t, http.StatusOK, map[string]any{"object": "payment_intent"})
		})
	}

	for path, status := range map[string]int{
		"/v1/payment_intents/pi_none": 404, "/v1/refunds/re_none": 404, "/v1/refunds/%00": 404, "/v1/nothing": 404, "/v1/": 404,
		intents + "?limit=0": 400, intents + "?limit=101": 400, intents + "?limit=x": 400, intents + "?starting_after=pi_none": 400,
		intents + "?starting_after=x": 400, intents + "?customer=cus_1": 400, intents + "?%zz": 400,
	} {
		f.get(path).want(t, status, map[string]any{"error.type": "invalid_request_error"})
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	f.post("/v1/payment_intents", strings.Repeat("k", 255), "amount", "1000000000000", "currency", "KWD", "metadata[empty]", "", "metadata[k]", "ü").
		want(t, http.StatusOK, map[string]any{"amount": 1e12, "currency": "kwd", "metadata": map[string]any{"k": "ü"}})
	f.post("/v1/payment_intents", strings.Repeat("k", 256), "amount", "100", "currency", "eur").
		want(t, http.StatusBadRequest, map[string]any{"error.type": "invalid_request_error"})
}

func TestAuthentication(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	f := start(t, sandbox.Options{})
	for authorization, status := range map[string]int{
		"Bearer sk_test_abc": 200, "bearer sk_test_abc": 200, "Basic c2tfdGVzdF9hYmM6": 200, // sk_test_abc:
		"": 401, "Bearer": 401, "Bearer sk_test_": 401, "Bearer sk_live_abc": 401, "Bearer pk_test_abc": 401,
		"Basic c2tfbGl2ZV9hYmM6": 401 /* sk_live_abc: */, "Basic !": 401, "Digest username=\"sk_test_abc\"": 401,
	} {
		a := f.must(f.do(http.MethodGet, "/v1/payment_intents", "", http.Header{"Authorization": {authorization}}))
		if a.status != status || (status == 401 && a.text("error.type") != "invalid_request_error") {
			t.Errorf("%s: answered %d %s, want %d", authorization, a.status, a.raw, status)
		}
	}
	f.must(f.do(http.MethodPost, "/v1/payment_intents", `{"amount":1}`, http.Header{
		"Authorization": {"Bearer sk_test_1"}, "Content-Type": {"application/json"},
	})).want(t, http.StatusBadRequest, map[string]any{"error.type": "invalid_request_error"}) // the body is no form
}

func TestAmounts_endInTheZerosThatStripeWants(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	for code, amounts := range map[string][2]string{"isk": {"550", "500"}, "UGX": {"10", "100"}, "KWD": {"5124", "5120"}} {
		f.post("/v1/payment_intents", "", "amount", amounts[0], "currency", code).
			want(t, http.StatusBadRequest, map[string]any{"error.type": "invalid_request_error", "error.param": "amount"})
		f.post("/v1/payment_intents", "", "amount", amounts[1], "currency", code).want(t, http.StatusOK, nil)
	}
}

func TestAccount_isNamedByTheKey(t *testing.T) {
	t.Parallel()
	f := start(t, sandbox.Options{})
	for key, want := range map[string]string{
		"sk_test_demo":          `"id": "acct_sandbox"`,
		"sk_test_acct_other_1":  `"id": "acct_other"`,
		"sk_live_acct_other_12": `"type": "invalid_request_error"`,
	} {
		a := f.must(f.do(http.MethodGet, "/v1/account", "", http.Header{"Authorization": {"Bearer " + key}}))
		if !strings.Contains(a.raw, want) {
			t.Errorf("%s: %s, want %s", key, a.raw, want)
		}
	}
}
