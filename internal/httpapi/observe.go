package httpapi

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/payonce/payonce/inbox"
)

// Observer counts and traces requests. Any of its functions may be nil. They are called
// concurrently and must return at once.
type Observer struct {
	// Serving is called before a request of a route under /v1, with its traceparent
	// headers. The request is handled in the context within; served is called with its
	// answer.
	Serving func(ctx context.Context, method, route string, traceparents []string) (within context.Context, served func(status int, key KeyResult))
	// Answered is called for every answer.
	Answered func(Answered)
	// Event is called with what became of a provider event about one of our charges.
	Event func(inbox.Reception)
}

// Answered is a request with its answer. The caller chooses none of its values.
type Answered struct {
	Method string // "other" unless it is a usual one
	Route  string // as it is registered, "" where there is none
	Status int
	Took   time.Duration
	// Key is what the request's idempotency key led to, "" where none was read.
	Key KeyResult
}

// KeyResult is what an idempotency key led to.
type KeyResult string

// What a key leads to.
const (
	KeyFirst       KeyResult = "first"       // the answer is stored under it now
	KeyReplayed    KeyResult = "replayed"    // a stored answer
	KeyReused      KeyResult = "reused"      // another request's
	KeyExpired     KeyResult = "expired"     // a tombstone
	KeyInUse       KeyResult = "in_use"      // its first request did not end in time
	KeyUnavailable KeyResult = "unavailable" // the store could not say
)

// KeyResults are all of them.
func KeyResults() []KeyResult {
	return []KeyResult{KeyFirst, KeyReplayed, KeyReused, KeyExpired, KeyInUse, KeyUnavailable}
}

const problemKey = "problem" // in echo's context: the type of a refusal

func (o Observer) answered(c echo.Context, v middleware.RequestLoggerValues) {
	if o.Answered == nil {
		return
	}
	o.Answered(Answered{
		Method: usualMethod(v.Method), Route: v.RoutePath, Status: v.Status, Took: v.Latency, Key: keyResult(c),
	})
}

// usualMethod keeps the number of methods small, whatever callers send.
func usualMethod(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return method
	}
	return "other"
}

// keyResult reads it from the answer: the key's own headers, and the problem.
func keyResult(c echo.Context) KeyResult {
	h := c.Response().Header()
	if h.Get(headerKey) == "" {
		return ""
	}
	switch c.Get(problemKey) {
	case "/problems/idempotency-key-reused":
		return KeyReused
	case "/problems/idempotency-key-expired":
		return KeyExpired
	case "/problems/idempotency-key-in-use":
		return KeyInUse
	case "/problems/unavailable":
		return KeyUnavailable
	}
	switch {
	case h.Get(headerReplayed) == "true":
		return KeyReplayed
	case h.Get(headerExpires) == "":
		return KeyInUse // 202 without an answer
	}
	return KeyFirst
}
