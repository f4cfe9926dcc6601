package stripe_test

import (
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

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
	for _, n := range []int{0, 1, 99, 100, 101, 250} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, listing(n, func(id string) string { return intentJSON("id", "pi_"+id) }))
			seq := newClient(t, p.URL, 0).Intents(t.Context(), time.Time{})
			if zero, err := first(seq); err != nil || zero != (n == 0) || p.requests.Load() != 1 {
				t.Errorf("the first is missing: %t after %d requests, %v", zero, p.requests.Load(), err)
			}
			all, err := collect(seq)
			if err != nil || len(all) != n {
				t.Fatalf("%d are listed, %v", len(all), err)
			}
			for i, in := range all {
				if want := "pi_" + strconv.Itoa(n-i); in.ID != want || in.Reference != "ch_1" {
					t.Fatalf("intent is %s of %s, want %s of ch_1", in.ID, in.Reference, want)
				}
			}
			if got, want := p.requests.Load()-1, int64(max(1, (n+99)/100)); got != want {
				t.Errorf("%d requests, want %d", got, want)
			}
		})
	}
}

// A failure, or an answer that is no list, never passes for the end of a list.
func TestIntents_endWithTheErrorOfAPage(t *testing.T) {
	t.Parallel()
	full := func(id string) string { return intentJSON("id", "pi_"+id) }
	for name, tc := range map[string]struct {
		page   http.HandlerFunc
		listed int // before the page
	}{
		"an empty object":                    {answer(200, `{}`), 0},
		"an intent":                          {answer(200, intentJSON()), 0},
		"a list without data":                {answer(200, `{"object":"list","has_more":false}`), 0},
		"an empty page that promises more":   {answer(200, list(true)), 0},
		"a list of refunds":                  {answer(200, list(false, refundJSON())), 0},
		"a list with an intent in no state":  {answer(200, list(false, intentJSON("status", ""))), 0},
		"a list whose last page is cut away": {answer(200, list(true, intentJSON())[:200]), 0},
		"a second page that is refused":      {answer(429, errorJSON("invalid_request_error", "rate_limit")), 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
				if tc.listed > 0 && r.URL.Query().Get("starting_after") == "" {
					listing(250, full)(w, r)
					return
				}
				tc.page(w, r)
			})
			all, err := collect(newClient(t, p.URL, 0).Intents(t.Context(), time.Time{}))
			if kinds(err) != "unavailable" || len(all) != tc.listed {
				t.Errorf("%d listed, then %v; want %d, then unavailable", len(all), err, tc.listed)
			}
			if got, want := p.requests.Load(), int64(1+tc.listed/100); got != want {
				t.Errorf("%d requests, want %d", got, want)
			}
		})
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
	for want, seq := range map[int]iter.Seq2[stripe.Refund, error]{120: c.Refunds(t.Context()), 2: c.RefundsOf(t.Context(), "pi_1")} {
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

// A list without an end does not keep its reader for ever.
func TestRefunds_endEvenIfTheProvidersListDoesNot(t *testing.T) {
	t.Parallel()
	refund := func(n int) string { return refundJSON("id", fmt.Sprintf("re_%d", n)) }
	page := func(from, to int) (ids []string) {
		for n := from; n < to; n++ {
			ids = append(ids, refund(n))
		}
		return ids
	}
	for name, tc := range map[string]struct {
		pages    []string // the last one is repeated
		requests int64
		listed   int
	}{
		"that ignores the cursor":                 {[]string{list(true, refund(1), refund(2))}, 2, 2},
		"that says it ends when it begins again":  {[]string{list(true, refund(1), refund(2)), list(false, refund(1), refund(2))}, 2, 2},
		"that goes round":                         {[]string{list(true, refund(1)), list(true, refund(2)), list(true, refund(1))}, 3, 2},
		"that turns back in the middle of a page": {[]string{list(true, refund(1), refund(2)), list(true, refund(3), refund(1))}, 2, 2},
		"that begins a page with its cursor":      {[]string{list(true, refund(1)), list(true, refund(1), refund(2))}, 2, 1},
		"that has one object twice in a page":     {[]string{list(false, refund(1), refund(1))}, 1, 0},
	} {
		t.Run("one "+name+" is no answer", func(t *testing.T) {
			t.Parallel()
			var asked int64
			p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
				asked++
				if asked > tc.requests {
					answer(200, list(false))(w, r) // so that the test ends without the bound too
					return
				}
				answer(200, tc.pages[min(int(asked), len(tc.pages))-1])(w, r)
			})
			c := newClient(t, p.URL, 0)
			for of, seq := range map[string]iter.Seq2[stripe.Refund, error]{
				"an intent": c.RefundsOf(t.Context(), "pi_1"), "the account": c.Refunds(t.Context()),
			} {
				asked = 0
				all, err := collect(seq)
				if kinds(err) != "unavailable" || len(all) != tc.listed || asked != tc.requests {
					t.Errorf("of %s: %d were listed in %d requests before %v, want %d in %d and then that it is unavailable",
						of, len(all), asked, err, tc.listed, tc.requests)
				}
			}
		})
	}

	endless := func(t *testing.T) *stripe.Client {
		t.Helper()
		next := 0
		p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
			next += 100
			answer(200, list(next < 7000, page(next-100, next)...))(w, r)
		})
		return newClient(t, p.URL, 0)
	}

	t.Run("an intent has no more than 5000", func(t *testing.T) {
		t.Parallel()
		if all, err := collect(endless(t).RefundsOf(t.Context(), "pi_1")); kinds(err) != "unavailable" || len(all) != 5000 {
			t.Errorf("%d were listed before %v, want 5000 and then that it is unavailable", len(all), err)
		}
	})
	t.Run("an account has any number", func(t *testing.T) {
		t.Parallel()
		if all, err := collect(endless(t).Refunds(t.Context())); err != nil || len(all) != 7000 {
			t.Errorf("%d were listed before %v, want all 7000", len(all), err)
		}
	})
}
