package domain_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
)

// TestAnySequenceOfCommands drives a charge with whatever may come, in any
// order, any number of times, sensible or not.
func TestAnySequenceOfCommands(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &model{charge: domain.Charge{ID: "ch_1"}}
		t.Repeat(map[string]func(*rapid.T){
			"request": func(t *rapid.T) { m.send(t, drawRequest(t)) },
			"reserve": func(t *rapid.T) { m.send(t, domain.ReserveInventory{}) },
			"reject": func(t *rapid.T) {
				m.send(t, domain.RejectInventory{Code: rapid.SampledFrom([]domain.FailureCode{domain.OutOfStock, domain.UnknownSKU}).Draw(t, "code")})
			},
			"start": func(t *rapid.T) {
				m.send(t, domain.StartPayment{Provider: domain.Provider, PaymentIntent: drawIntent(t)})
			},
			"fail attempt": func(t *rapid.T) {
				m.send(t, domain.FailAttempt{Stage: domain.StageConfirm, StatusCode: rapid.IntRange(500, 599).Draw(t, "status")})
			},
			"capture": func(t *rapid.T) { m.send(t, m.drawCapture(t)) },
			"decline": func(t *rapid.T) { m.send(t, domain.DeclinePayment{Failure: stolen()}) },
			"notify":  func(t *rapid.T) { m.send(t, domain.NotifyMerchant{EventID: "e", Type: "charge"}) },
			"":        m.check,
		})
	})
}

// model is the charge under test, its stream, and what the world outside would
// say of it.
type model struct {
	charge domain.Charge
	events []domain.Event
	status domain.Status // by the first command that ended it
}

// send decides one command and appends what it causes.
func (m *model) send(t *rapid.T, cmd domain.Command) {
	before := m.reread(t)
	events, err := domain.Decide(m.charge, cmd)
	if diff := cmp.Diff(before, m.charge); diff != "" {
		t.Fatalf("Decide of %#v changed its argument (-before +after):\n%s", cmd, diff)
	}
	if again, twin := domain.Decide(m.charge, cmd); !cmp.Equal(events, again) || (err == nil) != (twin == nil) {
		t.Fatalf("Decide of %#v is not the same twice: %v, %v and %v, %v", cmd, events, err, again, twin)
	}
	if err != nil {
		if len(events) > 0 {
			t.Fatalf("%#v is refused and causes %v", cmd, events)
		}
		return
	}
	m.events = append(m.events, events...)
	m.charge = domain.Fold(m.charge, events...)
	if diff := cmp.Diff(m.reread(t), m.charge); diff != "" {
		t.Fatalf("the charge differs from its stored stream (-stream +charge):\n%s", diff)
	}
	if _, attempt := cmd.(domain.FailAttempt); !attempt {
		if again, err := domain.Decide(m.charge, cmd); len(again) > 0 || err != nil {
			t.Fatalf("%#v again: %v, %v, want nothing", cmd, again, err)
		}
	}
	if len(events) > 0 {
		m.believe(cmd)
	}
}

// believe is what the world concludes from a command that took effect.
func (m *model) believe(cmd domain.Command) {
	switch cmd.(type) {
	case domain.RequestCharge:
		m.status = domain.Pending
	case domain.CapturePayment:
		m.status = domain.Succeeded
	case domain.RejectInventory, domain.DeclinePayment:
		m.status = domain.Failed
	case domain.ReserveInventory, domain.StartPayment, domain.FailAttempt, domain.NotifyMerchant:
	}
}

// reread folds the stream as it would be read back from the store. It shares
// no memory with the charge.
func (m *model) reread(t *rapid.T) domain.Charge {
	c := domain.Charge{ID: "ch_1"}
	for _, e := range m.events {
		data, err := domain.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := domain.Decode(domain.TypeOf(e), data)
		if err != nil {
			t.Fatal(err)
		}
		c = domain.Evolve(c, decoded)
	}
	return c
}

// check holds after every command.
func (m *model) check(t *rapid.T) {
	if _, err := domain.Replay(m.events); err != nil {
		t.Fatalf("Decide made a stream that Replay refuses: %v", err)
	}
	if m.charge.Status != m.status {
		t.Fatalf("the charge is %q, to the world it is %q", m.charge.Status, m.status)
	}
	captures, outcomes, webhooks := 0, 0, 0
	before := domain.Charge{ID: "ch_1"}
	balances := map[string]int64{}
	for _, e := range m.events {
		switch domain.TypeOf(e) {
		case domain.TypePaymentCaptured:
			captures++
		case domain.TypeChargeSucceeded, domain.TypeChargeFailed:
			outcomes++
		case domain.TypeMerchantNotified:
			webhooks++
		}
		for _, p := range domain.Postings(before, e) {
			if p.Amount <= 0 || p.Debit == p.Credit || p.Currency != m.charge.Amount.Currency {
				t.Fatalf("%T causes the posting %+v", e, p)
			}
			balances[p.Debit] += p.Amount
			balances[p.Credit] -= p.Amount
		}
		before = domain.Evolve(before, e)
	}
	if captures > 1 || outcomes > 1 || webhooks > 1 {
		t.Fatalf("%d captures, %d outcomes, %d webhooks", captures, outcomes, webhooks)
	}
	m.checkBooks(t, balances)
}

// checkBooks holds the books of the one charge against its outcome. A charge is
// in one currency, so all its accounts are.
func (m *model) checkBooks(t *rapid.T, balances map[string]int64) {
	sum := int64(0)
	for _, balance := range balances {
		sum += balance
	}
	if sum != 0 {
		t.Fatalf("the books sum to %d: %v", sum, balances)
	}
	if !m.charge.Exists() {
		return
	}
	amount, fee := m.charge.Amount.Amount, m.charge.Fee
	open, earned := amount, int64(0)
	if m.charge.Terminal() {
		open = 0 // the clearing rule
	}
	if m.charge.Status == domain.Succeeded {
		earned = amount
	} else {
		fee = 0
	}
	want := map[string]int64{
		"customer_receivable:acme": open,
		"merchant_pending:acme":    -open,
		"psp_receivable:stripe":    earned,
		"merchant_payable:acme":    -(earned - fee),
		"fee_revenue:payonce":      -fee,
	}
	for account, balance := range want {
		if got := balances[account+":"+string(m.charge.Amount.Currency)]; got != balance {
			t.Fatalf("%s is %d, want %d, while the charge is %s", account, got, balance, m.charge.Status)
		}
	}
}

func drawRequest(t *rapid.T) domain.Command {
	r := domain.RequestCharge{
		MerchantID: "acme", OrderID: "order 1", PaymentMethod: "pm_card_visa",
		Amount: domain.Money{
			Amount: rapid.OneOf(
				rapid.Int64Range(-1, 20), rapid.Int64Range(domain.MinAmount, domain.MaxAmount+1),
			).Draw(t, "amount"),
			Currency: rapid.SampledFrom([]domain.Currency{"EUR", "JPY", "BHD"}).Draw(t, "currency"),
		},
		Fees: domain.FeeSchedule{
			BasisPoints: rapid.Int64Range(0, 10_000).Draw(t, "basis points"),
			Fixed:       map[domain.Currency]int64{"EUR": rapid.Int64Range(0, 100).Draw(t, "fixed")},
		},
		Notify: rapid.Bool().Draw(t, "notify"),
	}
	if rapid.Bool().Draw(t, "items") {
		r.Items = []domain.Item{{SKU: "mug", Quantity: rapid.Int64Range(0, 3).Draw(t, "quantity")}}
	}
	return r
}

func drawIntent(t *rapid.T) string {
	return rapid.SampledFrom([]string{"pi_1", "pi_2", ""}).Draw(t, "payment intent")
}

// drawCapture is mostly what the provider would say, and sometimes wrong.
func (m *model) drawCapture(t *rapid.T) domain.Command {
	capture := domain.CapturePayment{
		Provider: domain.Provider, PaymentIntent: m.charge.PaymentIntent, Amount: m.charge.Amount,
	}
	if rapid.IntRange(0, 3).Draw(t, "what is wrong") == 0 {
		capture.PaymentIntent = drawIntent(t)
		capture.Amount.Amount += rapid.Int64Range(0, 1).Draw(t, "too much")
	}
	return capture
}
