package sandbox

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// apiError is Stripe's error object. As an operation's error it means that
// nothing was executed and nothing is saved; what an operation executed and
// then answers as an error (a decline) it returns as an answer.
type apiError struct {
	Type          string        `json:"type"`
	Code          string        `json:"code,omitempty"`
	DeclineCode   string        `json:"decline_code,omitempty"`
	Message       string        `json:"message"`
	Param         string        `json:"param,omitempty"`
	Charge        string        `json:"charge,omitempty"`
	PaymentIntent *intentObject `json:"payment_intent,omitempty"`
	PaymentMethod *methodObject `json:"payment_method,omitempty"`
	status        int
}

const (
	typeAPI         = "api_error"
	typeCard        = "card_error"
	typeIdempotency = "idempotency_error"
	typeInvalid     = "invalid_request_error"
)

func (e *apiError) Error() string {
	return fmt.Sprintf("%d %s %s: %s", e.status, e.Type, e.Code, e.Message)
}

// answer renders the error.
func (e *apiError) answer() answer {
	return object(e.status, struct {
		Error *apiError `json:"error"`
	}{e})
}

// answer is what a request is answered with, as it is saved and sent.
type answer struct {
	status int
	body   []byte
	// replayOf is the request that made a replayed answer, "" for a fresh one.
	replayOf string
}

// object renders v, which is always one of this package's own types.
func object(status int, v any) answer {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return answer{status: http.StatusInternalServerError, body: []byte(`{"error":{"type":"api_error","message":"the answer could not be rendered"}}`)}
	}
	return answer{status: status, body: append(body, '\n')}
}

func invalid(code, param, message string) *apiError {
	return &apiError{Type: typeInvalid, Code: code, Param: param, Message: message, status: http.StatusBadRequest}
}

func missing(param string) *apiError {
	return invalid("parameter_missing", param, "Missing required param: "+param+".")
}

// noSuch is 404 for the object that the path names and 400 for one that a
// parameter names.
func noSuch(status int, kind, param, id string) *apiError {
	e := invalid("resource_missing", param, fmt.Sprintf("No such %s: '%s'.", kind, id))
	e.status = status
	return e
}

func keyInUse(key string) *apiError {
	return &apiError{
		Type: typeIdempotency, Code: "idempotency_key_in_use", status: http.StatusConflict,
		Message: fmt.Sprintf("Another request with the idempotency key '%s' is under way. Try again later.", key),
	}
}

func keyReused(key string) *apiError {
	return &apiError{
		Type: typeIdempotency, status: http.StatusBadRequest,
		Message: fmt.Sprintf("The idempotency key '%s' was first used with another path or other parameters. Use another key for another request.", key),
	}
}

func unauthorized() *apiError {
	return &apiError{
		Type: typeInvalid, status: http.StatusUnauthorized,
		Message: "No valid API key was given. Send 'Authorization: Bearer sk_test_...' (the sandbox takes any such key, and no other).",
	}
}

// lockTimeout is answered when another request holds the intent for too long.
func lockTimeout() *apiError {
	return &apiError{
		Type: typeInvalid, Code: "lock_timeout", status: http.StatusTooManyRequests,
		Message: "Another request is using this object. Try again later.",
	}
}

// injected is the 500 that a fault asked for. It does not say on which side of
// the effect it happened, for no provider does.
func injected() *apiError {
	return &apiError{
		Type: typeAPI, status: http.StatusInternalServerError,
		Message: "An error occurred on the provider's side. (This one was asked for: PUT /faults, error_500.)",
	}
}

// outOfService is answered when the sandbox's own database cannot be used.
// Nothing is saved; whether a commit under way happened is not known.
func outOfService() *apiError {
	return &apiError{
		Type: typeAPI, status: http.StatusServiceUnavailable,
		Message: "The provider cannot reach its own books. Try again later.",
	}
}
