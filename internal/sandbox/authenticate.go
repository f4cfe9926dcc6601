package sandbox

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// redirect is Stripe's next_action of an intent that waits for its customer.
type redirect struct {
	Type string `json:"type"`
	To   struct {
		URL       string `json:"url"`
		ReturnURL string `json:"return_url"`
	} `json:"redirect_to_url"`
}

// nextAction is the action that an intent needs: the sandbox's own page, or, where the client
// gave no return_url, one that only Stripe's scripts could do.
func nextAction(c *call, i *intent, returnURL string) json.RawMessage {
	if returnURL == "" {
		return json.RawMessage(`{"type":"use_stripe_sdk","use_stripe_sdk":{}}`)
	}
	r := redirect{Type: "redirect_to_url"}
	r.To.URL, r.To.ReturnURL = c.origin+"/authenticate/"+i.ID, returnURL
	action, _ := json.Marshal(r) // strings have no error
	return action
}

const authenticationPage = `<!doctype html><title>3-D Secure</title><h1>3-D Secure of the sandbox</h1>
<form method="post"><button name="outcome" value="succeeded">Complete</button> <button name="outcome" value="failed">Fail</button></form>
`

// showAuthentication is GET /authenticate/{id}: the page to which the customer is sent.
func (s *Sandbox) showAuthentication(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, authenticationPage)
}

// authenticate is POST /authenticate/{id} with outcome=succeeded or failed: what the customer
// does on the page. It sends the customer back to the shop's return_url, as Stripe does.
func (s *Sandbox) authenticate(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, bodyLimit)
	outcome := r.FormValue("outcome")
	var back *url.URL
	_, err := s.decide(func(to *change) (_ answer, err error) {
		back, err = s.act(to, r.PathValue("id"), outcome)
		return answer{}, err
	})
	if err != nil {
		s.reply(w, answer{}, err, refused(http.StatusServiceUnavailable, "the sandbox cannot write its journal"))
		return
	}
	http.Redirect(w, r, back.String(), http.StatusSeeOther)
}

// act carries out what the customer did with the intent, and returns where to go next.
func (s *Sandbox) act(to *change, id, outcome string) (*url.URL, error) {
	i, err := s.books.intentAt(id, noIntentAt(id))
	if err != nil {
		return nil, err
	}
	var next redirect
	if i.Status != statusRequiresAction || json.Unmarshal(i.NextAction, &next) != nil || next.To.ReturnURL == "" {
		return nil, refused(http.StatusConflict, "the intent is %s: it waits for no customer", i.Status)
	}
	back, err := url.Parse(next.To.ReturnURL)
	if err != nil {
		return nil, fmt.Errorf("read the return_url: %w", err)
	}
	switch outcome {
	case "succeeded":
		i.Status = statusSucceeded
	case "failed":
		i.Status, i.PaymentMethod = statusRequiresMethod, nil
		i.LastPaymentError = invalid("payment_intent_authentication_failure", "", "The provided PaymentMethod has failed authentication.")
	default:
		return nil, refused(http.StatusBadRequest, "outcome is %q: give succeeded or failed", outcome)
	}
	i.NextAction = nil
	s.become(to, nil, i)
	query := back.Query()
	query.Set("payment_intent", i.ID)
	query.Set("redirect_status", outcome)
	back.RawQuery = query.Encode()
	return back, nil
}
