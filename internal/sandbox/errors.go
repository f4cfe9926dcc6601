package sandbox

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// apiError is Stripe's error object. As an operation's error it means that nothing
// was executed and nothing is saved. An error that was executed, such as a decline,
// is an answer.
type apiError struct {
	Type          string        `json:"type,omitempty"` // empty in the answers of control calls and of the shop
	Code          string        `json:"code,omitempty"`
	DeclineCode   string        `json:"decline_code,omitempty"`
	Message       string        `json:"message"`
	Param         string        `json:"param,omitempty"`
	Charge        string        `json:"charge,omitempty"`
	PaymentIntent *intent       `json:"payment_intent,omitempty"`
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

// answer is a response as it is saved and sent.
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

func newError(status int, kind, code, message string, args ...any) *apiError {
	return &apiError{Type: kind, Code: code, Message: fmt.Sprintf(message, args...), status: status}
}

// refused is the refusal of a control call or of a webhook.
func refused(status int, message string, args ...any) *apiError {
	return newError(status, "", "", message, args...)
}

func invalid(code, param, message string, args ...any) *apiError {
	e := newError(http.StatusBadRequest, typeInvalid, code, message, args...)
	e.Param = param
	return e
}

func missing(param string) *apiError {
	return invalid("parameter_missing", param, "Missing required param: %s.", param)
}

// noSuch is 404 for the object that the path names and 400 for one that a
// parameter names.
func noSuch(status int, kind, param, id string) *apiError {
	e := invalid("resource_missing", param, "No such %s: '%s'.", kind, id)
	e.status = status
	return e
}

// injected is the 500 of a fault. Like a provider's, it does not say whether it
// happened before or after the effect.
func injected() *apiError {
	return newError(http.StatusInternalServerError, typeAPI, "", "An error occurred on the provider's side. (It was requested: PUT /faults, error_500.)")
}
