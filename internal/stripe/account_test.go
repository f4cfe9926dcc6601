package stripe_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/stripe"
)

func TestAccount(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   stripe.Account
		kind   string
	}{
		"an account":                {answer(200, `{"object":"account","id":"acct_1"}`), stripe.Account{ID: "acct_1"}, ""},
		"another object":            {answer(200, intentJSON()), stripe.Account{}, "unavailable"},
		"a server without accounts": {answer(404, errorJSON("invalid_request_error", "")), stripe.Account{ID: "none"}, ""},
		"a page with 404":           {answer(404, html), stripe.Account{}, "unavailable"},
		"a key that is refused":     {answer(401, errorJSON("invalid_request_error", "")), stripe.Account{}, "needs an operator"},
	} {
		got, err := newClient(t, newProvider(t, test.answer).URL, 0).Account(t.Context())
		if got != test.want || kinds(err) != test.kind {
			t.Errorf("%s: %+v, %v, want %+v and %q", name, got, err, test.want, test.kind)
		}
	}
}

func TestClient_isBlockedUntilAnAnswerAcceptsTheKey(t *testing.T) {
	t.Parallel()
	var mended atomic.Bool
	c := newClient(t, newProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if mended.Load() {
			answer(200, intentJSON())(w, r)
			return
		}
		answer(403, errorJSON("invalid_request_error", ""))(w, r)
	}).URL, 0)
	for _, mend := range []bool{false, true} {
		mended.Store(mend)
		_, _ = c.RetrieveIntent(t.Context(), "pi_1")
		if blocked := c.Blocked() != ""; blocked == mend {
			t.Errorf("blocked: %q, mended: %t", c.Blocked(), mend)
		}
	}
}
