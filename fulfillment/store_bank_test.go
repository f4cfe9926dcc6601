package fulfillment_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// bank is a provider in memory, quick and strict: it remembers keys, takes the
// money of an intent once, and gives back no more than it took.
type bank struct {
	server *httptest.Server

	mu      sync.Mutex
	saved   map[string]http.HandlerFunc // answers by idempotency key
	intents map[string]*deposit
	refunds []*withdrawal
	objects int // that were ever made
	calls   int // since the trouble was set
	trouble trouble
}

type deposit struct {
	id, charge, method, status string
	amount                     int64
	captures                   int
	declined                   bool
}

type withdrawal struct {
	id, reference, intent, status string
	amount                        int64
}

// trouble is what happens at one call.
type trouble struct {
	kind string
	call int
	do   func()
}

const (
	cutBefore  = "cut before" // before it had an effect
	cutAfter   = "cut after"
	broken     = "500" // and no effect
	diesBefore = "the holder dies before"
	diesAfter  = "the holder dies after"
	hangs      = "the holder hangs before"
	hangsAfter = "the holder hangs after"
)

func newBank(t *testing.T) *bank {
	t.Helper()
	b := &bank{saved: map[string]http.HandlerFunc{}, intents: map[string]*deposit{}}
	b.server = httptest.NewServer(b)
	t.Cleanup(b.server.Close)
	return b
}

// expect sets what goes wrong next, nothing where it is zero.
func (b *bank) expect(next trouble) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls, b.trouble = 0, next
}

// forget is for a new sequence: what was about others is over.
func (b *bank) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.saved, b.intents, b.refunds = map[string]http.HandlerFunc{}, map[string]*deposit{}, nil
}

// forgetKeys is what a provider does after a day: it carries a call out again.
func (b *bank) forgetKeys() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.saved)
}

// taken is how often the money of a charge was taken, and whether it still may be.
func (b *bank) taken(charge string) (captures int, open bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.intents {
		if d.charge == charge {
			captures += d.captures
			// Without our confirmation an orphan stays as it is.
			open = open || d.status == "requires_payment_method"
		}
	}
	return captures, open
}

// given are the amounts that went back under our name of a refund.
func (b *bank) given(reference string) (amounts []int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.refunds {
		if r.reference == reference && r.status == "succeeded" {
			amounts = append(amounts, r.amount)
		}
	}
	return amounts
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		panic(err)
	}
	b.mu.Lock()
	b.calls++
	now := b.trouble
	if b.calls != now.call {
		now.kind = ""
	}
	b.mu.Unlock()
	switch now.kind {
	case cutBefore:
		cut(w, r)
	case cutAfter:
		b.answer(r)
		cut(w, r)
	case diesBefore:
		now.do()
		cut(w, r)
	case diesAfter:
		b.answer(r)
		now.do()
		cut(w, r)
	case hangs:
		now.do()
		b.answer(r)(w, r)
	case hangsAfter:
		answer := b.answer(r)
		now.do()
		answer(w, r)
	case broken:
		b.breaks(r)(w, r)
	default:
		b.answer(r)(w, r)
	}
}

// breaks is a saved 500 of a call that had no effect; one that is known already
// keeps its answer.
func (b *bank) breaks(r *http.Request) http.HandlerFunc {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := callOf(r).key
	if key == "" {
		return breaks()
	}
	if b.saved[key] == nil {
		b.saved[key] = breaks()
	}
	return b.saved[key]
}

// answer carries a call out, unless its key is known.
func (b *bank) answer(r *http.Request) http.HandlerFunc {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := callOf(r)
	if saved := b.saved[c.key]; c.key != "" && saved != nil {
		return saved
	}
	answer := b.carryOut(c, r)
	if c.key != "" {
		b.saved[c.key] = answer
	}
	return answer
}

// newID is of an object; nothing else ever has it, in no sequence.
func (b *bank) newID(prefix string) string {
	b.objects++
	return prefix + strconv.Itoa(b.objects)
}

func (b *bank) carryOut(c call, r *http.Request) http.HandlerFunc {
	amount, _ := strconv.ParseInt(r.FormValue("amount"), 10, 64)
	switch c.op {
	case "create":
		if r.FormValue("payment_method") == "pm_card_nobody" {
			return refuses(http.StatusBadRequest, "invalid_request_error", "resource_missing")
		}
		d := &deposit{
			id: b.newID("pi_"), charge: r.FormValue("metadata[charge_id]"),
			method: r.FormValue("payment_method"), amount: amount, status: "requires_confirmation",
		}
		b.intents[d.id] = d
		return d.shows()
	case "refund":
		return b.refund(r, amount)
	case "refunds":
		return b.list(c.intent)
	}
	d := b.intents[c.intent]
	if d == nil {
		return refuses(http.StatusNotFound, "invalid_request_error", "resource_missing")
	}
	switch {
	case c.op == "retrieve":
		return d.shows()
	case c.op == "confirm" && d.status == "requires_confirmation" && d.method == "pm_card_chargeDeclined":
		d.status, d.declined = "requires_payment_method", true
		return refuses(http.StatusPaymentRequired, "card_error", "card_declined", "decline_code", "generic_decline",
			"payment_intent", d.object())
	case c.op == "confirm" && d.status == "requires_confirmation":
		d.status, d.captures = "succeeded", d.captures+1
		return d.shows()
	case c.op == "cancel" && d.status != "succeeded" && d.status != "canceled":
		d.status = "canceled"
		return d.shows()
	default:
		return refuses(http.StatusBadRequest, "invalid_request_error", "payment_intent_unexpected_state", "payment_intent", d.object())
	}
}

func (d *deposit) object() map[string]any {
	o := map[string]any{
		"id": d.id, "object": "payment_intent", "status": d.status, "amount": d.amount, "amount_received": 0,
		"currency": "eur", "created": 1700000000, "metadata": map[string]any{"charge_id": d.charge},
		"last_payment_error": nil, "latest_charge": nil,
	}
	switch {
	case d.captures > 0:
		o["amount_received"], o["latest_charge"] = d.amount, "py_1"
	case d.declined:
		o["latest_charge"] = "py_1"
		o["last_payment_error"] = map[string]any{"type": "card_error", "code": "card_declined", "decline_code": "generic_decline", "message": "no"}
	}
	return o
}

func (d *deposit) shows() http.HandlerFunc { return says(http.StatusOK, object(d.object())) }

func (b *bank) refund(r *http.Request, amount int64) http.HandlerFunc {
	d := b.intents[r.FormValue("payment_intent")]
	if d == nil {
		return refuses(http.StatusNotFound, "invalid_request_error", "resource_missing")
	}
	left := d.amount * int64(d.captures)
	for _, other := range b.refunds {
		if other.intent == d.id && other.status == "succeeded" {
			left -= other.amount
		}
	}
	if amount > left {
		return refuses(http.StatusBadRequest, "invalid_request_error", "charge_already_refunded")
	}
	w := &withdrawal{
		id: b.newID("rp_"), reference: r.FormValue("metadata[refund_id]"),
		intent: d.id, amount: amount, status: "succeeded",
	}
	if d.method == "pm_card_refundFail" {
		w.status = "failed"
	}
	b.refunds = append(b.refunds, w)
	return says(http.StatusOK, object(w.object()))
}

func (w *withdrawal) object() map[string]any {
	return map[string]any{
		"id": w.id, "object": "refund", "status": w.status, "amount": w.amount, "currency": "eur",
		"payment_intent": w.intent, "metadata": map[string]any{"refund_id": w.reference},
	}
}

// list is of one intent, newest first.
func (b *bank) list(intent string) http.HandlerFunc {
	data := []any{}
	for _, w := range slices.Backward(b.refunds) {
		if w.intent == intent {
			data = append(data, w.object())
		}
	}
	return says(http.StatusOK, object(map[string]any{"object": "list", "url": "/v1/refunds", "has_more": false, "data": data}))
}
