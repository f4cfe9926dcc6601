package stripe_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	stripego "github.com/stripe/stripe-go/v85"

	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testrun"
)

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
