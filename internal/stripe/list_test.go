package stripe_test

import (
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/stripe"
)

func firstError[T any](seq iter.Seq2[T, error]) error {
	for _, err := range seq {
		if err != nil {
			return err
		}
	}
	return nil
}

func firstStep[T any](seq iter.Seq2[T, error]) error {
	for _, err := range seq {
		return err
	}
	return errors.New("the sequence is empty")
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

func TestIntents(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 99, 100, 101, 250} {
		t.Run(fmt.Sprintf("all %d are listed once", n), func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, listing(n, func(id string) string { return intentJSON("id", "pi_"+id) }))
			next := n
			for in, err := range newClient(t, p.URL, 0).Intents(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if want := fmt.Sprintf("pi_%d", next); in.ID != want || in.Reference != "ch_1" {
					t.Fatalf("intent is %s of %s, want %s of ch_1", in.ID, in.Reference, want)
				}
				next--
			}
			if next != 0 {
				t.Errorf("%d are missing", next)
			}
			if got, want := p.requests.Load(), int64(max(1, (n+99)/100)); got != want {
				t.Errorf("%d requests, want %d", got, want)
			}
		})
	}
	t.Run("nothing is asked for before it is needed", func(t *testing.T) {
		t.Parallel()
		p := newProvider(t, listing(250, func(id string) string { return intentJSON("id", "pi_"+id) }))
		seq := newClient(t, p.URL, 0).Intents(t.Context())
		if got := p.requests.Load(); got != 0 {
			t.Errorf("%d requests before the first step, want none", got)
		}
		if err := firstStep(seq); err != nil {
			t.Fatal(err)
		}
		if got := p.requests.Load(); got != 1 {
			t.Errorf("%d requests for the first intent, want 1", got)
		}
	})
}

// A list that is not one must never pass for an empty account.
func TestIntents_takes_nothing_else_for_a_list(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"an empty object":                    `{}`,
		"an intent":                          intentJSON(),
		"a list without data":                `{"object":"list","has_more":false}`,
		"an empty page that promises more":   list(true),
		"a list of refunds":                  list(false, refundJSON()),
		"a list with an intent in no state":  list(false, intentJSON("status", "")),
		"a list whose last page is cut away": list(true, intentJSON())[:200],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, answer(200, body))
			var steps int
			var last error
			for _, err := range newClient(t, p.URL, 0).Intents(t.Context()) {
				steps++
				last = err
			}
			if kinds(last) != "unavailable" || steps != 1 {
				t.Errorf("%d steps, the last with %v; want one that is unavailable", steps, last)
			}
			if got := p.requests.Load(); got != 1 {
				t.Errorf("%d requests, want 1", got)
			}
		})
	}
}

func TestIntents_ends_at_the_first_page_that_fails(t *testing.T) {
	t.Parallel()
	good := listing(250, func(id string) string { return intentJSON("id", "pi_"+id) })
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("starting_after") != "" {
			answer(429, errorJSON("invalid_request_error", "rate_limit"))(w, r)
			return
		}
		good(w, r)
	})
	var listed, failed int
	for in, err := range newClient(t, p.URL, 0).Intents(t.Context()) {
		if err != nil {
			failed++
			if kinds(err) != "unavailable" || in != (stripe.Intent{}) {
				t.Errorf("got %+v, %v", in, err)
			}
			continue
		}
		listed++
	}
	if listed != 100 || failed != 1 {
		t.Errorf("%d listed and %d errors, want 100 and 1", listed, failed)
	}
}

func TestRefunds(t *testing.T) {
	t.Parallel()
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
		n := 120
		if r.URL.Query().Get("payment_intent") == "pi_1" {
			n = 2
		}
		listing(n, func(id string) string { return refundJSON("id", "re_"+id, "status", nil) })(w, r)
	})
	c := newClient(t, p.URL, 0)
	for name, tc := range map[string]struct {
		seq  iter.Seq2[stripe.Refund, error]
		want int
	}{
		"of the account": {c.Refunds(t.Context()), 120},
		"of an intent":   {c.RefundsOf(t.Context(), "pi_1"), 2},
	} {
		var got int
		for r, err := range tc.seq {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if r.Reference != "re_ours" || r.PaymentIntent != "pi_1" || r.Currency != "EUR" || r.Status != "" {
				t.Errorf("%s: refund is %+v", name, r)
			}
			got++
		}
		if got != tc.want {
			t.Errorf("%s: %d refunds, want %d", name, got, tc.want)
		}
	}
}

// A list that does not come to an end must not keep its reader for ever.
func TestLists_end(t *testing.T) {
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
				listed, err := walked(seq)
				if kinds(err) != "unavailable" || listed != tc.listed || asked != tc.requests {
					t.Errorf("of %s: %d were listed in %d requests before %v, want %d in %d and then that it is unavailable",
						of, listed, asked, err, tc.listed, tc.requests)
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

	t.Run("one intent's refunds are not more than any intent has", func(t *testing.T) {
		t.Parallel()
		listed, err := walked(endless(t).RefundsOf(t.Context(), "pi_1"))
		if kinds(err) != "unavailable" || listed != 5000 {
			t.Errorf("%d were listed before %v, want 5000 and then that it is unavailable", listed, err)
		}
	})

	t.Run("an account's may be as many as it has", func(t *testing.T) {
		t.Parallel()
		if listed, err := walked(endless(t).Refunds(t.Context())); err != nil || listed != 7000 {
			t.Errorf("%d were listed before %v, want all 7000", listed, err)
		}
	})
}

// walked is how many objects a list had, and how it ended.
func walked(seq iter.Seq2[stripe.Refund, error]) (listed int, end error) {
	for _, err := range seq {
		if err != nil {
			return listed, err
		}
		listed++
	}
	return listed, nil
}
