package stripe

import (
	"net/http"
	"strings"
)

// Answered is what came back for a request, when its headers are there.
type Answered struct {
	Status   int  // 0: no answer came
	Replayed bool // the provider had answered this idempotency key before
}

// Calls are the names of the requests that a client sends.
func Calls() []string {
	return []string{
		"GET payment_intents", "POST payment_intents", "GET payment_intents/id",
		"POST payment_intents/id/confirm", "POST payment_intents/id/cancel",
		"GET refunds", "POST refunds", "GET refunds/id",
	}
}

// callName is the request's name: the method and the path, with id in place of
// ids.
func callName(r *http.Request) string {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	if len(parts) > 1 {
		parts[1] = "id"
	}
	return r.Method + " " + strings.Join(parts, "/")
}
