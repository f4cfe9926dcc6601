package fulfillment_test

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/intake"
)

// What the merchant does.

// accept orders something under a key that may have been used.
func (m *machine) accept(t *rapid.T) {
	c := intake.Charge{
		OrderID: "order", Amount: rapid.Int64Range(1, 1000).Draw(t, "amount"), Currency: "EUR",
		PaymentMethod: rapid.SampledFrom([]string{
			"pm_card_visa", "pm_card_visa", "pm_card_chargeDeclined", "pm_card_nobody", "pm_card_refundFail",
		}).Draw(t, "method"),
	}
	model := modelCharge{method: c.PaymentMethod, amount: c.Amount, status: domain.Pending}
	if model.sku = rapid.SampledFrom([]string{"", "mug", "tshirt"}).Draw(t, "sku"); model.sku != "" {
		model.quantity = rapid.Int64Range(1, 2).Draw(t, "quantity")
		c.Items = []intake.Item{{SKU: model.sku, Quantity: model.quantity}}
	}
	m.ask(t, "POST /v1/charges", drawKey(t), fmt.Sprint(c), true, func(account intake.Account, r intake.Request) (idempotency.Outcome, error) {
		return m.intake.AcceptCharge(m.Context(), account, r, c)
	}, func(location string) {
		made := model
		made.id = path.Base(location)
		m.charges = append(m.charges, &made)
		m.requests++
	})
}

func drawKey(t *rapid.T) string {
	return rapid.StringMatching(`k[0-9]`).Draw(t, "key")
}

// cancel takes a charge back, or comes too late.
func (m *machine) cancel(t *rapid.T) {
	c := m.drawCharge(t)
	m.ask(t, "POST /v1/charges/:id/cancel", drawKey(t), c.id, c.status == domain.Pending, func(account intake.Account, r intake.Request) (idempotency.Outcome, error) {
		return m.intake.CancelCharge(m.Context(), account, r, c.id)
	}, func(string) {
		if !c.canceled {
			m.requests++
		}
		c.canceled = true
	})
}

// refund asks for money back, sometimes for more than there is.
func (m *machine) refund(t *rapid.T) {
	c := m.drawRefundable(t)
	amount := rapid.Int64Range(1, c.amount+1).Draw(t, "amount")
	wanted, content := intake.Refund{Amount: &amount}, fmt.Sprint(c.id, amount)
	if rapid.IntRange(0, 3).Draw(t, "all that is left") == 0 {
		wanted, content, amount = intake.Refund{}, c.id+" all", c.left()
	}
	may := c.left() > 0 && amount <= c.left()
	m.ask(t, "POST /v1/charges/:id/refunds", drawKey(t), content, may, func(account intake.Account, r intake.Request) (idempotency.Outcome, error) {
		return m.intake.RequestRefund(m.Context(), account, r, c.id, wanted)
	}, func(location string) {
		c.refunds = append(c.refunds, &modelRefund{id: path.Base(location), amount: amount, status: domain.RefundStatusPending})
		m.requests++
	})
}

// drawRefundable is mostly a charge that has something left.
func (m *machine) drawRefundable(t *rapid.T) *modelCharge {
	rich := slices.DeleteFunc(slices.Clone(m.charges), func(c *modelCharge) bool { return c.left() == 0 })
	if len(rich) == 0 || rapid.IntRange(0, 3).Draw(t, "any charge") == 0 {
		return m.drawCharge(t)
	}
	return rich[rapid.IntRange(0, len(rich)-1).Draw(t, "charge")]
}

func (m *machine) drawCharge(t *rapid.T) *modelCharge {
	if len(m.charges) == 0 {
		t.Skip("no charge")
	}
	return m.charges[rapid.IntRange(0, len(m.charges)-1).Draw(t, "charge")]
}

// ask sends a request. Under a key that is free it is accepted if it may be, and
// else refused, and either answer is the key's; under one that was used it gets
// the key's answer, or is told that it is another request.
func (m *machine) ask(t *rapid.T, operation, key, content string, may bool, send func(intake.Account, intake.Request) (idempotency.Outcome, error), accepted func(location string)) {
	var known *use
	for _, u := range m.uses {
		if u.operation == operation && u.key == key {
			known = u
		}
	}
	got, err := send(m.request(operation, key, content))
	text := fmt.Sprintf("%d %s %s %s", got.StatusCode, got.ContentType, got.Location, got.Body)
	switch {
	case known == nil:
		if err != nil || got.Replayed || (got.StatusCode == http.StatusAccepted) != may {
			t.Fatalf("a new %s was answered %s, %v, replayed %v; by the model it is accepted: %v", operation, text, err, got.Replayed, may)
		}
		if may {
			accepted(got.Location)
		}
		u := &use{operation: operation, key: key, content: content, answer: text}
		u.repeat = func(t *rapid.T, content string) { m.ask(t, operation, key, content, false, send, nil) }
		m.uses = append(m.uses, u)
	case known.content != content:
		if !errors.Is(err, idempotency.ErrReused) {
			t.Fatalf("another %s under a used key was answered %s, %v", operation, text, err)
		}
	case known.expired:
		if !errors.Is(err, idempotency.ErrExpired) {
			t.Fatalf("%s under an expired key was answered %s, %v", operation, text, err)
		}
	case err != nil || !got.Replayed || text != known.answer:
		t.Fatalf("%s was answered %s, replayed %v, %v; the first time it was %s", operation, text, got.Replayed, err, known.answer)
	}
}

// repeat asks again for something that was asked before.
func (m *machine) repeat(t *rapid.T) {
	u := m.drawUse(t)
	u.repeat(t, u.content)
}

// otherBody asks for something else under a key.
func (m *machine) otherBody(t *rapid.T) {
	u := m.drawUse(t)
	u.repeat(t, u.content+" and more")
}

func (m *machine) drawUse(t *rapid.T) *use {
	if len(m.uses) == 0 {
		t.Skip("no key was used")
	}
	return m.uses[rapid.IntRange(0, len(m.uses)-1).Draw(t, "use")]
}

// expire lets the time of a key pass, and sweeps.
func (m *machine) expire(t *rapid.T) {
	u := m.drawUse(t)
	m.exec(t, `
update idempotency_keys
   set expires_at = clock_timestamp() - interval '1 day'
 where scope = $1
   and operation = $2
   and key = $3`, m.merchant, u.operation, u.key)
	u.expired = true
	if rapid.Bool().Draw(t, "sweep") {
		if _, err := idempotency.Sweep(m.Context(), m.db, 100); err != nil {
			t.Fatal(err)
		}
	}
}

// What the post does.

// isWork tells whether the receiver of charges gets it.
func (p *parcel) isWork() bool {
	return strings.HasSuffix(p.kind, "requested.v1")
}

// receive delivers a message, perhaps not for the first time.
func (m *machine) receive(t *rapid.T) { m.deliver(t, m.drawParcel(t)) }

func (m *machine) drawParcel(t *rapid.T) *parcel {
	m.collect(t)
	work := slices.DeleteFunc(slices.Clone(m.parcels), func(p *parcel) bool { return !p.isWork() })
	if len(work) == 0 {
		t.Skip("no message")
	}
	fresh := slices.DeleteFunc(slices.Clone(work), func(p *parcel) bool { return p.standing != undelivered })
	if len(fresh) > 0 && rapid.IntRange(0, 3).Draw(t, "any message") > 0 {
		work = fresh
	}
	return work[rapid.IntRange(0, len(work)-1).Draw(t, "message")]
}

func (m *machine) deliver(t *rapid.T, p *parcel) {
	m.give(t, p, p.payload)
	p.deliveries++
	m.tally.received.Add(1)
	if p.standing == undelivered {
		m.got++
		p.standing, p.number = waiting, m.got
	}
}

// receiveForged delivers another payload under a known id, which nobody is to see.
func (m *machine) receiveForged(t *rapid.T) {
	p := m.drawParcel(t)
	if p.standing == undelivered {
		t.Skip("not known yet")
	}
	m.give(t, p, append([]byte("forged "), p.payload...))
}

func (m *machine) give(t *rapid.T, p *parcel, payload []byte) {
	b := &pgx.Batch{}
	if err := inbox.Accept(b, m.receiver, inbox.Message{
		ID: p.id, Type: p.kind, OrderingKey: p.charge, Payload: payload, Metadata: p.metadata,
	}); err != nil {
		t.Fatal(err)
	}
	m.commit(t, b)
}
