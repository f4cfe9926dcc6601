package sandbox

import (
	"net/http"
	"slices"
	"time"
)

// saved is the answer that a key leads to.
type saved struct {
	Fingerprint []byte
	Request     string // that made the answer
	Status      int
	Body        []byte
	At          time.Time
}

// capture is a successful confirmation. An intent may have two of them: a provider that
// captured twice must show two.
type capture struct {
	ID, Intent, Currency string
	Amount               int64
}

// event is one of Stripe's events, in the bytes that are signed, at every delivery the same.
type event struct {
	ID, Type, Body string

	attempts int
	due      time.Time
}

// MarshalJSON writes the event as it was sent.
func (e *event) MarshalJSON() ([]byte, error) { return []byte(e.Body), nil }

// effect is what the merchant did for a webhook.
type effect struct{ ID, Reference, Type string }

// books are the records of the provider and of the shop, in the order of time. They change
// by apply alone, and what they hold is never changed but replaced.
type books struct {
	requests, replays int
	keys              map[string]*saved
	used              map[string]bool // payment methods that are not used again
	intents           table[*intent]
	processing        map[string]*intent // those of intents that settle when their time has come
	captures          []*capture
	refunds           table[*refund]
	disputes          table[*disputed]
	events            table[*event]
	waiting           map[string]*event // those of events that are to be sent
	webhooks          map[string]int    // arrivals, by the webhook's id
	effects           []*effect         // one for each webhook
}

func newBooks() *books {
	return &books{keys: map[string]*saved{}, used: map[string]bool{}, processing: map[string]*intent{}, waiting: map[string]*event{}, webhooks: map[string]int{}}
}

func (b *books) apply(c *change) {
	if c.Arrived {
		b.requests++
	}
	if c.Replayed {
		b.replays++
	}
	if c.Saved != nil {
		b.keys[c.Key] = c.Saved
	}
	if c.Used != "" {
		b.used[c.Used] = true
	}
	for _, i := range c.Intents {
		b.intents.put(i.ID, (*intent)(i))
		if delete(b.processing, i.ID); i.Status == statusProcessing {
			b.processing[i.ID] = (*intent)(i)
		}
	}
	b.captures = append(b.captures, c.Captures...)
	for _, r := range c.Refunds {
		b.refunds.put(r.ID, (*refund)(r))
	}
	for _, d := range c.Disputes {
		b.disputes.put(d.ID, (*disputed)(d))
	}
	for _, e := range c.Events {
		b.events.put(e.ID, (*event)(e))
		b.waiting[e.ID] = (*event)(e)
	}
	for _, id := range c.Delivered {
		if e, found := b.events.get(id); found {
			e.attempts = max(1, e.attempts)
			delete(b.waiting, id)
		}
	}
	if w := c.Webhook; w != nil {
		if b.webhooks[w.ID]++; b.webhooks[w.ID] == 1 {
			b.effects = append(b.effects, w)
		}
	}
}

// table has objects in the order in which they were made.
type table[T any] struct {
	rows  []T
	index map[string]int
}

func (t *table[T]) put(id string, row T) {
	if t.index == nil {
		t.index = map[string]int{}
	}
	at, known := t.index[id]
	if !known {
		t.index[id] = len(t.rows)
		t.rows = append(t.rows, row)
		return
	}
	t.rows[at] = row
}

func (t *table[T]) get(id string) (row T, found bool) {
	at, found := t.index[id]
	if found {
		row = t.rows[at]
	}
	return row, found
}

// find returns the first row that matches.
func (t *table[T]) find(matches func(T) bool) (row T, found bool) {
	at := slices.IndexFunc(t.rows, matches)
	if at < 0 {
		return row, false
	}
	return t.rows[at], true
}

// members are those of a JSON object.
type members = map[string]any

// getBooks is GET /books. Refunds that failed moved no money and are left out. One that was
// made outside has its own id for a reference.
func (s *Sandbox) getBooks(*http.Request) (answer, error) {
	return s.decide(func(*change) (answer, error) {
		b := s.books
		captured := map[string]int{}
		for _, c := range b.captures {
			captured[c.Intent]++
		}
		intents, captures, refunds, disputes, notifications := []members{}, []members{}, []members{}, []members{}, []members{}
		for _, i := range b.intents.rows {
			intents = append(intents, members{
				"reference": i.reference(), "charge_reference": i.Metadata["charge_reference"], "id": i.ID, "status": i.Status,
				"amount": i.Amount, "currency": i.Currency, "captures": captured[i.ID],
			})
		}
		for _, c := range b.captures {
			i, _ := b.intents.get(c.Intent)
			captures = append(captures, members{
				"reference": i.reference(), "charge_reference": i.Metadata["charge_reference"],
				"payment_intent": c.Intent, "amount": c.Amount, "currency": c.Currency,
			})
		}
		for _, r := range b.refunds.rows {
			if r.Status == statusSucceeded {
				refunds = append(refunds, members{"reference": r.reference(), "payment_intent": r.PaymentIntent, "amount": r.Amount})
			}
		}
		for _, d := range b.disputes.rows {
			disputes = append(disputes, members{"reference": d.ID, "payment_intent": d.PaymentIntent, "amount": d.Amount, "status": d.Status})
		}
		effects := map[string]int{}
		for _, e := range b.effects {
			effects[e.ID]++
		}
		for _, e := range b.effects {
			notifications = append(notifications, members{
				"webhook_id": e.ID, "reference": e.Reference, "type": e.Type, "deliveries": b.webhooks[e.ID], "effects": effects[e.ID],
			})
		}
		return object(http.StatusOK, members{
			"intents": intents, "captures": captures, "refunds": refunds, "disputes": disputes, "notifications": notifications,
			"requests": b.requests, "duplicates_suppressed": b.replays,
		}), nil
	})
}
