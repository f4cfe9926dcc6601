package stripe_test

import (
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/stripe"
)

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
		if zero, err := first(seq); err != nil || zero != (n == 0) || p.requests.Load() != 1 {
			t.Errorf("%d: the first is missing: %t after %d requests, %v", n, zero, p.requests.Load(), err)
		}
		all, err := collect(seq)
		if requests := p.requests.Load() - 1; err != nil || len(all) != n || requests != int64(max(1, (n+99)/100)) {
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
	refused := []http.HandlerFunc{
		answer(429, errorJSON("invalid_request_error", "rate_limit")), answer(500, errorJSON("api_error", "")), cut(""),
	}
	var again int
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("starting_after") == "pi_51" && again < len(refused) {
			again++
			refused[again-1](w, r)
			return
		}
		listing(150, func(id string) string { return intentJSON("id", "pi_"+id, "status", "of the future", "metadata", nil) })(w, r)
	})
	all, err := collect(newClient(t, p.URL, 0).Intents(t.Context()))
	if err != nil || len(all) != 150 || p.requests.Load() != 5 {
		t.Errorf("%d are listed in %d requests, %v", len(all), p.requests.Load(), err)
	}
}

func TestRefunds_areThoseOfTheAccountOrOfAnIntent(t *testing.T) {
	t.Parallel()
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
		n := 120
		if r.URL.Query().Get("payment_intent") == "pi_1" {
			n = 2
		}
		listing(n, func(id string) string { return refundJSON("id", "re_"+id, "status", nil) })(w, r)
	})
	c := newClient(t, p.URL, 0)
	for want, seq := range map[int]iter.Seq2[stripe.Refund, error]{120: c.Refunds(t.Context(), ""), 2: c.Refunds(t.Context(), "pi_1")} {
		all, err := collect(seq)
		if err != nil || len(all) != want {
			t.Errorf("%d refunds, %v, want %d", len(all), err, want)
		}
		for _, r := range all {
			if r.Reference != "re_ours" || r.PaymentIntent != "pi_1" || r.Currency != "EUR" || r.Status != "" {
				t.Errorf("refund is %+v", r)
			}
		}
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
