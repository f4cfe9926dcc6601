package sandbox

import (
	"cmp"
	"io"
	"net/http"
	"net/url"
)

const authenticationPage = `<!doctype html><title>3-D Secure</title><h1>3-D Secure of the sandbox</h1>
<form method="post"><button name="outcome" value="succeeded">Complete</button> <button name="outcome" value="failed">Fail</button></form>
`

// showAuthentication is GET /authenticate/{id}: the page to which the customer is sent.
func (s *Sandbox) showAuthentication(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, authenticationPage)
}

// authenticate is POST /authenticate/{id} with outcome=succeeded or failed: what the customer does on the page.
// It sends the customer back to the shop's return_url, as Stripe does.
func (s *Sandbox) authenticate(c *call, to *change) (any, error) {
	i, err := s.intentAt(c)
	if err != nil {
		return nil, err
	}
	if i["status"] != statusRequiresAction {
		return nil, unexpected(i, "authenticate")
	}
	form, _ := url.ParseQuery(string(c.body))
	outcome, status := cmp.Or(form.Get("outcome"), c.URL.Query().Get("outcome")), statusSucceeded
	switch outcome {
	case "succeeded":
	case "failed":
		status = statusRequiresMethod
		i["last_payment_error"] = invalid("payment_intent_authentication_failure", "", "The provided PaymentMethod has failed authentication.").object
	default:
		return nil, invalid("", "outcome", "The outcome is %q: give succeeded or failed.", outcome)
	}
	back, err := url.Parse(i.text("_return_url"))
	if err != nil {
		return nil, invalid("url_invalid", "return_url", "Not a valid URL")
	}
	query := back.Query()
	query.Set("payment_intent", i.text("id"))
	query.Set("redirect_status", outcome)
	back.RawQuery = query.Encode()
	i["next_action"] = nil
	s.become(to, nil, i, s.books.get("charge", i.text("latest_charge")), status)
	return back, nil
}
