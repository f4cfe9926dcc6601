package domain_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
)

// TestAnySequenceOfCommands sends commands to a charge in any order, any number of times,
// sensible or not, and compares the charge with a model after each.
func TestAnySequenceOfCommands(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &model{charge: domain.Charge{ID: "ch_1"}}
		for range rapid.SampledFrom([]int{0, 2, 3, 4, 4, 4, 4}).Draw(t, "steps taken") {
			m.send(t, m.next(t))
		}
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
			"decline": func(t *rapid.T) {
				m.send(t, domain.DeclinePayment{Failure: rapid.SampledFrom([]domain.Failure{stolen(), stolen(), dropped()}).Draw(t, "why")})
			},
			"cancel":              func(t *rapid.T) { m.send(t, domain.CancelCharge{}) },
			"fail canceled":       func(t *rapid.T) { m.send(t, domain.FailCanceled{}) },
			"request refund":      func(t *rapid.T) { m.send(t, m.drawRefund(t)) },
			"request another":     func(t *rapid.T) { m.send(t, m.drawRefund(t)) },
			"fail refund attempt": func(t *rapid.T) { m.send(t, domain.FailRefundAttempt{RefundID: m.drawKnown(t), StatusCode: 500}) },
			"succeed refund":      func(t *rapid.T) { m.send(t, m.drawSuccess(t)) },
			"fail refund":         func(t *rapid.T) { m.send(t, m.drawFailure(t)) },
			"notify": func(t *rapid.T) {
				m.send(t, domain.NotifyMerchant{EventID: "e", Version: rapid.IntRange(-1, len(m.events)+1).Draw(t, "version")})
			},
			"": m.check,
		})
	})
}

// model is the charge under test, its stream, and what the events must have led to. The
// model computes that from the commands: it asks the charge for nothing.
type model struct {
	charge domain.Charge
	events []domain.Event

	status          domain.Status // by the command that ended it
	outcome         int           // the version at which that was
	silent          bool          // the merchant wants no webhook about the charge
	cancelRequested bool
	captured        int64
	refunds         []repayment
	unnotified      []int
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
	if expected, known := m.expects(cmd); known && expected != (len(events) > 0) {
		t.Fatalf("%#v causes %v, %v; by the model it takes effect: %v", cmd, events, err, expected)
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
	if again, err := domain.Decide(m.charge, cmd); !isAttempt(cmd) && (len(again) > 0 || err != nil) {
		t.Fatalf("%#v repeated: %v, %v, want nothing", cmd, again, err)
	}
	if len(events) > 0 {
		m.note(cmd)
	}
}

// expects returns whether a command must take effect, if the model knows.
func (m *model) expects(cmd domain.Command) (expected, known bool) {
	open := m.status == domain.Pending
	switch cmd := cmd.(type) {
	case domain.CancelCharge:
		return open && !m.cancelRequested, true
	case domain.FailCanceled:
		return open && m.cancelRequested, true
	case domain.NotifyMerchant:
		return slices.Contains(m.unnotified, m.about(cmd)), true
	case domain.RequestRefund:
		return m.mayRequest(cmd), true
	case domain.FailRefundAttempt:
		return m.find(cmd.RefundID).Status == domain.RefundStatusPending, true
	case domain.ResolveRefund:
		return m.mayResolve(cmd), true
	case domain.RequestCharge, domain.ReserveInventory, domain.RejectInventory, domain.StartPayment,
		domain.FailAttempt, domain.CapturePayment, domain.DeclinePayment:
	}
	return false, false
}

// note records a command that took effect.
func (m *model) note(cmd domain.Command) {
	switch cmd := cmd.(type) {
	case domain.RequestCharge:
		m.status, m.silent = domain.Pending, !cmd.Notify
	case domain.CapturePayment:
		m.captured = cmd.Amount.Amount
		m.end(domain.Succeeded)
	case domain.RejectInventory, domain.DeclinePayment, domain.FailCanceled:
		m.end(domain.Failed)
	case domain.CancelCharge:
		m.cancelRequested = true
	case domain.NotifyMerchant:
		m.unnotified = slices.DeleteFunc(m.unnotified, func(version int) bool { return version == m.about(cmd) })
	case domain.RequestRefund:
		m.open(cmd)
	case domain.FailRefundAttempt:
		m.change(cmd.RefundID, func(r *repayment) { r.Attempted = len(m.events) })
	case domain.ResolveRefund:
		m.resolve(cmd)
	case domain.ReserveInventory, domain.StartPayment, domain.FailAttempt:
	}
}

func (m *model) end(status domain.Status) {
	m.status, m.outcome = status, len(m.events)
	if !m.silent {
		m.unnotified = append(m.unnotified, m.outcome)
	}
}

// about returns the version that a webhook is about.
func (m *model) about(n domain.NotifyMerchant) int {
	if n.Version == 0 {
		return m.outcome
	}
	return n.Version
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
		c = domain.Fold(c, decoded)
	}
	return c
}

// next returns the command of the step that is due, as an undisturbed worker sends it.
func (m *model) next(t *rapid.T) domain.Command {
	switch {
	case !m.charge.Exists():
		return domain.RequestCharge{
			MerchantID: "acme", Notify: rapid.Bool().Draw(t, "notify"),
			Amount: rapid.Int64Range(30, 1000).Draw(t, "amount"), Currency: "EUR", Fee: 30,
			Items: []domain.Item{{SKU: "mug", Quantity: 1}},
		}
	case m.charge.Next() == domain.Inventory:
		return domain.ReserveInventory{}
	case !m.charge.Started():
		return domain.StartPayment{Provider: domain.Provider, PaymentIntent: "pi_1"}
	default:
		return domain.CapturePayment{Provider: domain.Provider, PaymentIntent: "pi_1", Amount: m.charge.Amount}
	}
}

func drawRequest(t *rapid.T) domain.Command {
	r := domain.RequestCharge{
		MerchantID: "acme", OrderID: "order 1", PaymentMethod: "pm_card_visa",
		Amount:   rapid.OneOf(rapid.Int64Range(-1, 20), rapid.Int64Range(domain.MinAmount, domain.MaxAmount+1)).Draw(t, "amount"),
		Currency: rapid.SampledFrom([]domain.Currency{"EUR", "JPY", "BHD"}).Draw(t, "currency"),
		Fee:      rapid.Int64Range(-1, 20).Draw(t, "fee"),
		Notify:   rapid.Bool().Draw(t, "notify"),
	}
	if rapid.Bool().Draw(t, "items") {
		r.Items = []domain.Item{{SKU: "mug", Quantity: rapid.Int64Range(0, 3).Draw(t, "quantity")}}
	}
	return r
}

func drawIntent(t *rapid.T) string {
	return rapid.SampledFrom([]string{"pi_1", "pi_2", ""}).Draw(t, "payment intent")
}

// drawCapture draws mostly what the provider would answer, and sometimes another capture.
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
