package httpapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/openapi"
)

// fits compares what we make of the parameters of a request with what the
// contract has against them: a query is refused for exactly the parameters that
// do not fit, a key exactly if it does not fit, and nothing is found at a path
// that does not fit.
func fits(c *openapi.Contract, e openapi.Exchange) error {
	misfits, listed, err := c.Misfits(e.Request)
	if err != nil || !listed || answeredBefore(e.Status) {
		return err
	}
	var p problem
	if e.Header.Get("Content-Type") == "application/problem+json" {
		if err := json.Unmarshal(e.Body, &p); err != nil {
			return err
		}
	}
	of := func(in string) []openapi.Misfit {
		return slices.DeleteFunc(slices.Clone(misfits), func(m openapi.Misfit) bool { return m.In != in })
	}
	return errors.Join(queryFits(c, e, p, of("query")), keyFits(e, p, of("header")), pathFits(e, of("path")))
}

// answeredBefore tells the answers that are found before any parameter is looked at.
func answeredBefore(status int) bool {
	return slices.Contains([]int{
		http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusTooManyRequests, http.StatusServiceUnavailable,
	}, status)
}

func queryFits(c *openapi.Contract, e openapi.Exchange, p problem, misfits []openapi.Misfit) error {
	if e.Request.Method == http.MethodPost || e.Request.Method == http.MethodHead { // a body is judged there, or none is answered
		return nil
	}
	want := []string{}
	for _, m := range misfits {
		want = append(want, pointerOf(m))
	}
	got := []string{}
	if p.Type == "/problems/validation" {
		got = append(got, p.pointers()...)
	}
	want, got = set(want), set(got)
	if len(want) == 0 && slices.Equal(got, []string{"/starting_after"}) { // fits, and is no charge of the caller's
		return nil
	}
	if diff := cmp.Diff(want, got); diff != "" && hasQuery(c, e.Request) {
		return fmt.Errorf("%s %s is answered %d and refuses (-by the contract +by us):\n%s", e.Request.Method, e.Request.URL, e.Status, diff)
	}
	return nil
}

// pointerOf is how a refusal names a parameter, unless it must not be repeated.
func pointerOf(m openapi.Misfit) string {
	if m.Name == "" || !utf8.ValidString(m.Name) || isText(m.Name) != nil {
		return ""
	}
	return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(m.Name)
}

func hasQuery(c *openapi.Contract, r *http.Request) bool {
	for _, o := range c.Operations() {
		if o.Method == r.Method && o.Path == r.URL.Path {
			return slices.ContainsFunc(c.Parameters(o), func(p openapi.Parameter) bool { return p.In == "query" })
		}
	}
	return false
}

// keyFits is about the headers that a request must have. A body that is refused is
// refused before them, and so is a path.
func keyFits(e openapi.Exchange, p problem, misfits []openapi.Misfit) error {
	bodyFirst := p.Type == "/problems/malformed" || p.Type == "/problems/validation" && len(p.Errors) > 0 ||
		e.Status == http.StatusNotFound && e.Header.Get("Idempotency-Key") == ""
	if bodyFirst {
		return nil
	}
	want := map[string]string{}
	for _, m := range misfits {
		switch {
		case m.Name != "Stripe-Signature" && m.Name != "Idempotency-Key": // passed over, or replaced
		case m.Name == "Stripe-Signature":
			want[m.Name] = "/problems/webhook-signature"
		case m.Keyword == "required":
			want[m.Name] = "/problems/idempotency-key-missing"
		case errors.Is(m.Cause, errCard) && p.Type != "/problems/idempotency-key-invalid": // it may be no key besides
			want[m.Name] = "/problems/validation"
		default:
			want[m.Name] = "/problems/idempotency-key-invalid"
		}
	}
	got := map[string]string{}
	switch p.Type {
	case "/problems/webhook-signature":
		if _, misfit := want["Stripe-Signature"]; !misfit {
			return nil // it has the form of one
		}
		got["Stripe-Signature"] = p.Type
	case "/problems/idempotency-key-missing", "/problems/idempotency-key-invalid":
		got["Idempotency-Key"] = p.Type
	case "/problems/validation":
		if e.Request.Method == http.MethodPost {
			got["Idempotency-Key"] = p.Type
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("%s %s with %q is answered %d %s; the headers are refused (-by the contract +by us):\n%s",
			e.Request.Method, e.Request.URL, e.Request.Header, e.Status, e.Body, diff)
	}
	return nil
}

func pathFits(e openapi.Exchange, misfits []openapi.Misfit) error {
	if len(misfits) > 0 && !slices.Contains([]int{http.StatusBadRequest, http.StatusNotFound, http.StatusUnprocessableEntity}, e.Status) {
		return fmt.Errorf("%s %s is answered %d, and does not fit: %v", e.Request.Method, e.Request.URL.EscapedPath(), e.Status, misfits)
	}
	return nil
}
