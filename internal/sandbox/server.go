package sandbox

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	strict "github.com/go-json-experiment/json"

	"github.com/payonce/payonce/internal/loop"
)

// call is one request, as it was read, and what it does. One that no request of the provider's API made has no id.
type call struct {
	*http.Request

	id      string
	body    []byte
	params  params
	key     string   // the Idempotency-Key of a call of the provider that changes something
	refusal *refusal // of what could not be read
	fault   fault
	changed []object // what objects become by the call
}

// put notes what an object becomes.
func (c *call) put(o object) { c.changed = append(c.changed, maps.Clone(o)) }

// endpoint answers a call by a decision. It reads the records, puts what changes, and returns what to show.
type endpoint func(c *call) any

// answer is a response as it is saved and sent.
type answer struct {
	status   int
	body     string
	replayOf string // the request that made a replayed answer, "" for a fresh one
}

// render makes an answer of what an endpoint returned.
func render(shown any) answer {
	status := http.StatusOK
	switch o := shown.(type) {
	case answer:
		return o
	case *refusal:
		status, shown = o.status, object{"error": o.object}
	case object:
		shown = o.shown()
	}
	body, _ := json.MarshalIndent(shown, "", "  ") // objects, plans and empty structs have no error
	return answer{status: status, body: string(body) + "\n"}
}

// read reads the whole request.
func read(r *http.Request) *call {
	c := &call{Request: r}
	var err error
	if c.body, err = io.ReadAll(io.LimitReader(r.Body, bodyLimit+1)); err != nil || len(c.body) > bodyLimit {
		c.refusal = refuse(http.StatusRequestEntityTooLarge, "", "", "The body must have at most %d bytes.", bodyLimit)
	}
	return c
}

// control serves a control call: no fault meets it.
func (s *Sandbox) control(run endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { s.serve(w, read(r), run) }
}

// json reads the body of a control call strictly: unknown, repeated and case-folded members and trailing
// data are refused.
func (c *call) json(v any) *refusal {
	if err := strict.Unmarshal(c.body, v, strict.RejectUnknownMembers(true)); err != nil {
		return invalid("", "", "The body cannot be read: %v", err)
	}
	return nil
}

// provider serves a call of the provider with these parameters.
func (s *Sandbox) provider(parameters string, run endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := read(r)
		c.readForm()
		s.arrive(c)
		w.Header().Set("Request-Id", c.id)
		if c.key != "" {
			w.Header().Set("Idempotency-Key", c.key)
			if _, busy := s.inFlight.LoadOrStore(c.key, nil); busy {
				c.refusal = refuse(http.StatusConflict, "idempotency_key_in_use", "",
					"Another request with the idempotency key '%s' is in flight. Try again later.", c.key)
				c.key, c.fault.Slow.P = "", 0
			}
			defer s.inFlight.Delete(c.key)
		}
		s.serve(w, c, func(c *call) any {
			if e := c.params.check(parameters); e != nil {
				return e
			}
			return run(c)
		})
	}
}

// arrive draws a call's fault, and counts a call of the provider, whatever becomes of it.
func (s *Sandbox) arrive(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.fault = s.draw(); c.id != "" {
		s.books.record(s.books.counted("requests"))
	}
}

// readForm reads the secret key, which protects nothing, and the parameters. A refused request has no
// idempotency key.
func (c *call) readForm() {
	encoded := c.URL.RawQuery
	if c.Method == http.MethodPost {
		encoded = string(c.body)
	}
	values, err := url.ParseQuery(encoded)
	c.id, c.params = newID("req_"), params{values}
	switch {
	case !strings.HasPrefix(c.Header.Get("Authorization"), "Bearer sk_test_"):
		c.refusal = refuse(http.StatusUnauthorized, "", "", "No valid API key was given: send a bearer sk_test_...")
	case err != nil:
		c.refusal = invalid("", "", "The parameters are not a valid form encoding.")
	case c.refusal == nil && c.Method == http.MethodPost:
		c.key = c.Header.Get("Idempotency-Key")
	}
}

// serve answers a call, under its fault. It is executed even if its client has gone.
func (s *Sandbox) serve(w http.ResponseWriter, c *call, run endpoint) {
	f := c.fault
	if f.slow < f.Slow.P {
		loop.Pause(s.running, time.Duration(f.Slow.MS)*time.Millisecond, nil)
	}
	if f.before < f.DropBefore {
		panic(http.ErrAbortHandler) // by which the server closes the connection
	}
	shown := s.decide(c, run)
	if f.after < f.DropAfter {
		panic(http.ErrAbortHandler)
	}
	reply(w, shown)
}

// decide makes one decision at a time. What objects become by it is written, and then applied to the records.
func (s *Sandbox) decide(c *call, run endpoint) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	shown := s.once(c, run)
	s.books.record(c.changed...)
	return shown
}

// once replays the answer under the call's key, or executes the call and saves its answer. A
// drawn 500 replaces the answer: before, nothing is executed; after, everything is. The key
// leads to it from then on.
func (s *Sandbox) once(c *call, run endpoint) any {
	if c.refusal != nil {
		return c.refusal
	}
	known := s.books.get("saved", "key "+c.key)
	if known != nil && s.options.Now().Sub(time.Unix(0, known.number("_at"))) < c.fault.keep {
		if known["fingerprint"] != c.fingerprint() {
			e := invalid("", "", "The idempotency key '%s' was first used with another path or other parameters.", c.key)
			e.object["type"] = typeIdempotency
			return e
		}
		c.put(s.books.counted("duplicates_suppressed"))
		return answer{status: int(known.number("status")), body: known.text("body"), replayOf: known.text("request")}
	}
	shown := run(c)
	if e, refused := shown.(*refusal); refused && !e.saved {
		c.changed = nil
		return e
	}
	if f := c.fault; f.fails < f.Error500 {
		if f.half >= 0.5 {
			c.changed = nil
		}
		shown = refuse(http.StatusInternalServerError, "", "", "An error occurred on the provider's side (error_500).")
	}
	a := render(shown)
	if c.key != "" {
		c.put(s.newObject("saved", "", object{
			"id": "key " + c.key, "fingerprint": c.fingerprint(), "request": c.id, "status": a.status, "body": a.body,
			"_at": s.options.Now().UnixNano(),
		}))
	}
	return a
}

// fingerprint is what must be equal in a request that repeats a key.
func (c *call) fingerprint() string { return c.Method + " " + c.URL.Path + "?" + c.params.Encode() }

// reply writes what is shown.
func reply(w http.ResponseWriter, shown any) {
	a := render(shown)
	if a.replayOf != "" {
		w.Header().Set("Idempotent-Replayed", "true")
		w.Header().Set("Original-Request", a.replayOf)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body) // the client may have gone; the outcome stands
}

// refusal is Stripe's error.
type refusal struct {
	object

	status int
	saved  bool // under the key, as what the request came to; after any other one nothing has changed
}

// keep saves a refusal.
func (e *refusal) keep() *refusal {
	e.saved = true
	return e
}

const typeIdempotency = "idempotency_error"

// errorTypes are the types of errors by their statuses. Other statuses are those of invalid requests.
var errorTypes = map[int]string{
	http.StatusPaymentRequired: "card_error", http.StatusConflict: typeIdempotency,
	http.StatusInternalServerError: "api_error", http.StatusServiceUnavailable: "api_error",
}

func refuse(status int, code, param, message string, args ...any) *refusal {
	e := &refusal{object: object{"type": cmp.Or(errorTypes[status], "invalid_request_error")}, status: status}
	e.object["message"] = fmt.Sprintf(message, args...)
	if param != "" {
		e.object["param"] = param
	}
	if code != "" {
		e.object["code"] = code
		e.object["doc_url"] = "https://stripe.com/docs/error-codes/" + strings.ReplaceAll(code, "_", "-")
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
	e := invalid("payment_intent_unexpected_state", "",
		"You cannot %s this PaymentIntent because it has a status of %s.", verb, i["status"])
	e.object["payment_intent"] = i.shown()
	return e.keep()
}

const (
	keyRetention = 24 * time.Hour // for which keys are known unless a plan says otherwise
	slowMax      = 60_000         // milliseconds of one delay
)

// plan is the body of PUT /faults. Each p is a probability, drawn per request.
type plan struct {
	Seed       uint64  `json:"seed"`
	DropBefore float64 `json:"drop_before"`
	DropAfter  float64 `json:"drop_after"`
	Error500   float64 `json:"error_500"`
	Slow       struct {
		P  float64 `json:"p"`
		MS int64   `json:"ms"`
	} `json:"slow"`
	ShopDown bool `json:"shop_down"`
	// ForgetKeysAfter is a duration as Go writes it; "" means 24 h, "0s" that every key is new.
	ForgetKeysAfter string `json:"forget_keys_after"`

	keep time.Duration // ForgetKeysAfter
}

var noFaults = plan{keep: keyRetention}

// fault is what one request meets: the plan, and the numbers that were drawn. A connection is cut before
// anything was decided, or after everything was recorded. A drawn 500 happens before the effect or after it, half
// and half, and is saved under the key; a replayed answer does not become a 500. The zero fault is none.
type fault struct {
	plan

	before, after, fails, half, slow float64
}

// follow starts the plan's sequence of draws from its seed. The lock is held.
func (s *Sandbox) follow(p plan) {
	s.plan = p
	s.random = rand.New(rand.NewPCG(p.Seed, 0)) //nolint:gosec // faults must repeat
}

// draw returns the next of the plan's sequence. Each draw takes five numbers, so
// changing one probability moves no other fault. The lock is held.
func (s *Sandbox) draw() fault {
	next := s.random.Float64
	return fault{plan: s.plan, before: next(), after: next(), fails: next(), half: next(), slow: next()}
}

// putFaults is PUT /faults.
func (s *Sandbox) putFaults(c *call) any {
	var p plan
	if e := c.json(&p); e != nil {
		return e
	}
	var err error
	p.keep, err = time.ParseDuration(cmp.Or(p.ForgetKeysAfter, keyRetention.String()))
	chances := []float64{p.DropBefore, p.DropAfter, p.Error500, p.Slow.P}
	if err != nil || slices.Max(chances) > 1 || min(slices.Min(chances), float64(p.keep), float64(p.Slow.MS)) < 0 || p.Slow.MS > slowMax {
		return invalid("", "", "Give probabilities from 0 to 1, a forget_keys_after such as 24h, and at most %d as slow.ms.", slowMax)
	}
	s.follow(p)
	return p
}

// deleteFaults is DELETE /faults.
func (s *Sandbox) deleteFaults(*call) any {
	s.follow(noFaults)
	return answer{status: http.StatusNoContent}
}
