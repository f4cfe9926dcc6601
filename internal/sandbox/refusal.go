package sandbox

import (
	"fmt"
	"net/http"
	"strings"
)

// refusal is Stripe's error. As the error of an endpoint it means that nothing was executed and nothing is
// saved, unless it is executed: then it is what the request came to, such as a decline.
type refusal struct {
	object

	status   int
	executed bool
}

func (e *refusal) Error() string { return fmt.Sprintf("%d %v", e.status, e.object) }

const typeIdempotency = "idempotency_error"

// refuse makes an error. Its type follows from the status.
func refuse(status int, code, param, message string, args ...any) *refusal {
	e := &refusal{object{"type": "invalid_request_error", "message": fmt.Sprintf(message, args...)}, status, false}
	switch {
	case status == http.StatusPaymentRequired:
		e.object["type"] = "card_error"
	case status == http.StatusConflict:
		e.object["type"] = typeIdempotency
	case status >= http.StatusInternalServerError:
		e.object["type"] = "api_error"
	}
	if param != "" {
		e.object["param"] = param
	}
	if code != "" {
		e.object["code"], e.object["doc_url"] = code, "https://stripe.com/docs/error-codes/"+strings.ReplaceAll(code, "_", "-")
	}
	return e
}

func invalid(code, param, message string, args ...any) *refusal {
	return refuse(http.StatusBadRequest, code, param, message, args...)
}

func missing(param string) *refusal {
	return invalid("parameter_missing", param, "Missing required param: %s.", param)
}

// noSuch is 404 for the object that the path names and 400 for one that a parameter names.
func noSuch(status int, kind, param, id string) *refusal {
	return refuse(status, "resource_missing", param, "No such %s: '%s'.", kind, id)
}

// unexpected refuses what the intent's state does not allow, and shows the intent.
func unexpected(i object, verb string) *refusal {
	e := invalid("payment_intent_unexpected_state", "", "You cannot %s this PaymentIntent because it has a status of %s.", verb, i["status"])
	e.object["payment_intent"], e.executed = i.shown(), true
	return e
}
