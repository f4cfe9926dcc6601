package sandbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
)

const keyMax = 255

// call is one request to the provider.
type call struct {
	id     string
	method string
	path   string
	// target is the object that the path names.
	target string
	key    string
	origin string // of the sandbox, as the client has it
	charge string // the header Payonce-Charge
	secret string // the secret key
	params *params
	fault  draw
}

// provider serves one route of the provider.
func (s *Sandbox) provider(run endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, refusal := readCall(r)
		c.fault = s.faults.draw()
		a, err := s.process(c, refusal, run)
		if c.fault.dropAfter {
			err = errCut
		}
		w.Header().Set("Request-Id", c.id)
		if c.key != "" {
			w.Header().Set("Idempotency-Key", c.key)
		}
		s.reply(w, a, err, newError(http.StatusServiceUnavailable, typeAPI, "", "The provider cannot write its own books. Try again later."))
	}
}

// errCut ends a call without an answer.
var errCut = errors.New("the connection is cut")

// control serves a control call, or the shop.
func (s *Sandbox) control(decide func(r *http.Request) (answer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a, err := decide(r)
		s.reply(w, a, err, refused(http.StatusServiceUnavailable, "the sandbox cannot write its journal"))
	}
}

// endpoint answers a request. It reads the records and fills the change, with which its answer
// is saved. An *apiError is answered and not saved, and nothing is executed.
type endpoint func(c *call, to *change) (answer, error)

// process runs a request in the order of a provider. Its key is in flight from
// before it is counted until its answer is decided. A fault may delay it. It is
// executed even if its client has gone.
func (s *Sandbox) process(c *call, refusal *apiError, run endpoint) (answer, error) {
	rival := false
	if c.key != "" && refusal == nil {
		if _, rival = s.inFlight.LoadOrStore(c.key, true); !rival {
			defer s.inFlight.Delete(c.key)
		}
	}
	if _, err := s.decide(func(to *change) (answer, error) {
		to.Arrived = true
		return answer{}, nil
	}); err != nil {
		return answer{}, err
	}
	if rival {
		return answer{}, newError(http.StatusConflict, typeIdempotency, "idempotency_key_in_use",
			"Another request with the idempotency key '%s' is in flight. Try again later.", c.key)
	}
	s.delay(c.fault.slow)
	switch {
	case c.fault.dropBefore:
		return answer{}, errCut
	case refusal != nil:
		return answer{}, refusal
	}
	return s.decide(func(to *change) (answer, error) { return s.once(c, to, run) })
}

// once replays the answer under the call's key, or executes the call and saves its answer. A
// drawn 500 replaces the answer: before, nothing is executed; after, everything is. The key
// leads to it from then on.
func (s *Sandbox) once(c *call, to *change, run endpoint) (answer, error) {
	now := s.options.Now()
	if known := s.books.keys[c.key]; known != nil && now.Sub(known.At) < c.fault.keepKeys {
		if !bytes.Equal(known.Fingerprint, c.fingerprint()) {
			return answer{}, newError(http.StatusBadRequest, typeIdempotency, "",
				"The idempotency key '%s' was first used with another path or other parameters. Use another key for another request.", c.key)
		}
		to.Replayed = true
		return answer{status: known.Status, body: known.Body, replayOf: known.Request}, nil
	}
	a, err := run(c, to)
	if err != nil {
		return answer{}, err
	}
	if c.fault.errorBefore {
		*to = change{}
	}
	if c.fault.errorBefore || c.fault.errorAfter {
		a = injected().answer()
	}
	if c.key != "" {
		to.Key, to.Saved = c.key, &saved{Fingerprint: c.fingerprint(), Request: c.id, Status: a.status, Body: a.body, At: now}
	}
	return a, nil
}

// fingerprint covers what must be equal in a request that repeats a key.
func (c *call) fingerprint() []byte {
	sum := sha256.Sum256([]byte(c.method + "\x00" + c.path + "\x00" + c.params.values.Encode()))
	return sum[:]
}

func unrecognized(c *call, _ *change) (answer, error) {
	return answer{}, newError(http.StatusNotFound, typeInvalid, "", "Unrecognized request URL (%s: %s).", c.method, c.path)
}

// reply writes the answer, or the error as one. unavailable is the answer when nothing
// could be written.
func (s *Sandbox) reply(w http.ResponseWriter, a answer, err error, unavailable *apiError) {
	if errors.Is(err, errCut) {
		cut(w)
		return
	}
	if err != nil {
		var refusal *apiError
		if !errors.As(err, &refusal) {
			s.options.Logger.Error("request failed", "request_id", w.Header().Get("Request-Id"), "error", err)
			refusal = unavailable
		}
		a = refusal.answer()
	}
	if a.replayOf != "" {
		w.Header().Set("Idempotent-Replayed", "true")
		w.Header().Set("Original-Request", a.replayOf)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // the client may have gone; the outcome stands
}

// cut closes the connection without an answer.
func cut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // a server that cannot hijack cuts this way
	}
	_ = conn.Close()
}

// readCall reads the whole request. The call is usable even if refused.
func readCall(r *http.Request) (*call, *apiError) {
	c := &call{
		id:     newID("req_"),
		method: r.Method,
		path:   strings.ToValidUTF8(r.URL.Path, ""),
		target: r.PathValue("id"),
		origin: "http://" + r.Host,
		charge: r.Header.Get("Payonce-Charge"),
	}
	if c.secret = secretOf(r); len(c.secret) <= len(testKey) || !strings.HasPrefix(c.secret, testKey) {
		return c, newError(http.StatusUnauthorized, typeInvalid, "",
			"No valid API key was given. Send 'Authorization: Bearer sk_test_...' (the sandbox takes any such key, and no other).")
	}
	encoded := r.URL.RawQuery
	if r.Method == http.MethodPost {
		key := r.Header.Get("Idempotency-Key")
		if len(key) > keyMax || strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) {
			return c, invalid("", "", "Idempotency keys hold at most %d printable ASCII characters.", keyMax)
		}
		c.key = key
		body, refusal := readForm(r)
		if refusal != nil {
			return c, refusal
		}
		encoded = body
	}
	p, refusal := readParams(encoded)
	c.params = p
	return c, refusal
}

func readForm(r *http.Request) (string, *apiError) {
	body, err := io.ReadAll(io.LimitReader(r.Body, bodyLimit+1))
	if err != nil || len(body) > bodyLimit {
		return "", invalid("", "", "The request's body could not be read or is larger than %d bytes.", bodyLimit)
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if len(body) > 0 && (err != nil || kind != "application/x-www-form-urlencoded") {
		return "", invalid("", "", "Send parameters as application/x-www-form-urlencoded.")
	}
	return string(body), nil
}

// testKey is how the keys begin that the sandbox accepts: it protects nothing.
const testKey = "sk_test_"

// secretOf returns the secret key: a bearer, or the user of basic authentication.
func secretOf(r *http.Request) string {
	key, _, ok := r.BasicAuth()
	if scheme, value, _ := strings.Cut(r.Header.Get("Authorization"), " "); !ok && strings.EqualFold(scheme, "bearer") {
		key = value
	}
	return key
}

// retrieveAccount answers the account that the key names.
func retrieveAccount(c *call, _ *change) (answer, error) {
	if err := c.params.done(); err != nil {
		return answer{}, err
	}
	id := "acct_sandbox"
	if name, named := strings.CutPrefix(c.secret, testKey+"acct_"); named {
		name, _, _ = strings.Cut(name, "_")
		id = "acct_" + name
	}
	return object(http.StatusOK, members{
		"id": id, "object": "account", "country": "DE", "default_currency": "eur", "type": "standard",
		"charges_enabled": true, "payouts_enabled": true, "details_submitted": true, "metadata": map[string]string{},
	}), nil
}

// apiError is Stripe's error object. As an operation's error it means that nothing
// was executed and nothing is saved. An error that was executed, such as a decline,
// is an answer.
type apiError struct {
	Type          string  `json:"type,omitempty"` // empty in the answers of control calls and of the shop
	Code          string  `json:"code,omitempty"`
	DeclineCode   string  `json:"decline_code,omitempty"`
	DocURL        string  `json:"doc_url,omitempty"`
	Message       string  `json:"message"`
	Param         string  `json:"param,omitempty"`
	Charge        string  `json:"charge,omitempty"`
	PaymentIntent *intent `json:"payment_intent,omitempty"`
	PaymentMethod members `json:"payment_method,omitempty"`
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
	body, _ := json.MarshalIndent(v, "", "  ")
	return answer{status: status, body: append(body, '\n')}
}

func newError(status int, kind, code, message string, args ...any) *apiError {
	e := &apiError{Type: kind, Code: code, Message: fmt.Sprintf(message, args...), status: status}
	if code != "" {
		e.DocURL = "https://stripe.com/docs/error-codes/" + strings.ReplaceAll(code, "_", "-")
	}
	return e
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
