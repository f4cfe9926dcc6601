package domain_test

import (
	"slices"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/domain"
)

// repayment is what the model knows of a refund.
type repayment struct {
	ID, Object string
	Amount     int64
	Status     domain.RefundStatus
	Requested  int // versions, as in domain.Refund
	Attempted  int
	Ended      int
	Reversed   int
	Notify     bool
}

// find returns the model's refund with an id; one without id if there is none.
func (m *model) find(id string) repayment {
	for _, r := range m.refunds {
		if r.ID == id {
			return r
		}
	}
	return repayment{}
}

func (m *model) sum(status domain.RefundStatus) int64 {
	var sum int64
	for _, r := range m.refunds {
		if r.Status == status {
			sum += r.Amount
		}
	}
	return sum
}

// left returns what may still be refunded.
func (m *model) left() int64 {
	return m.captured - m.sum(domain.RefundStatusPending) - m.sum(domain.RefundStatusSucceeded)
}

// free reports whether the provider's object has ended no other refund.
func (m *model) free(object, id string) bool {
	return object == "" || !slices.ContainsFunc(m.refunds, func(r repayment) bool { return r.Object == object && r.ID != id })
}

// The next two report whether a command about a refund must take effect.

func (m *model) mayRequest(cmd domain.RequestRefund) bool {
	return cmd.RefundID != "" && m.find(cmd.RefundID).ID == "" &&
		cmd.Amount >= 0 && cmd.Amount <= m.left() && m.left() > 0
}

func (m *model) mayResolve(cmd domain.ResolveRefund) bool {
	switch r := m.find(cmd.RefundID); r.Status {
	case domain.RefundStatusPending:
		return m.free(cmd.ProviderRefund, r.ID) && (cmd.Failed || cmd.ProviderRefund != "" &&
			cmd.Amount == domain.Money{Amount: r.Amount, Currency: m.charge.Amount.Currency})
	case domain.RefundStatusSucceeded:
		return cmd.Failed && r.Object == cmd.ProviderRefund
	default:
		return false
	}
}

// open records a refund that was accepted.
func (m *model) open(cmd domain.RequestRefund) {
	amount := cmd.Amount
	if amount == 0 {
		amount = m.left()
	}
	m.refunds = append(m.refunds, repayment{
		ID: cmd.RefundID, Amount: amount, Status: domain.RefundStatusPending,
		Requested: len(m.events), Attempted: len(m.events), Notify: cmd.Notify,
	})
}

func (m *model) change(id string, to func(*repayment)) {
	for i := range m.refunds {
		if m.refunds[i].ID == id {
			to(&m.refunds[i])
		}
	}
}

// resolve ends a refund, or reverses it; the merchant may want a webhook about either.
func (m *model) resolve(cmd domain.ResolveRefund) {
	m.change(cmd.RefundID, func(r *repayment) {
		if r.Ended > 0 {
			r.Reversed = len(m.events)
		} else {
			r.Object, r.Ended = cmd.ProviderRefund, len(m.events)
		}
		r.Status = domain.RefundStatusSucceeded
		if cmd.Failed {
			r.Status = domain.RefundStatusFailed
		}
		if r.Notify {
			m.unnotified = append(m.unnotified, len(m.events))
		}
	})
}

// checkRefunds compares the charge's refunds with the model's.
func (m *model) checkRefunds(t *rapid.T) {
	var own []repayment
	pending := m.charge.PendingRefunds()
	for _, r := range m.charge.Refunds {
		own = append(own, repayment{
			ID: r.ID, Object: r.ProviderRefund, Amount: r.Amount, Status: r.Status, Notify: r.Notify,
			Requested: r.RequestVersion, Attempted: r.AttemptVersion, Ended: r.OutcomeVersion, Reversed: r.ReversalVersion,
		})
		if slices.Contains(pending, r) != (r.OutcomeVersion == 0) {
			t.Fatalf("refund %s is %s at %d, pending are %v", r.ID, r.Status, r.OutcomeVersion, pending)
		}
	}
	if diff := cmp.Diff(m.refunds, own); diff != "" {
		t.Fatalf("the refunds (-model +charge):\n%s", diff)
	}
}

func drawID(t *rapid.T) string {
	return rapid.SampledFrom([]string{"re_1", "re_2", "re_3", "re_4", ""}).Draw(t, "refund")
}

// drawKnown draws mostly the id of a known refund.
func (m *model) drawKnown(t *rapid.T) string {
	if len(m.refunds) == 0 || rapid.IntRange(0, 7).Draw(t, "unknown") == 0 {
		return drawID(t)
	}
	return rapid.SampledFrom(m.refunds).Draw(t, "known").ID
}

// drawRefund draws mostly a part of what is left, sometimes all, sometimes more.
func (m *model) drawRefund(t *rapid.T) domain.Command {
	return domain.RequestRefund{
		RefundID: drawID(t),
		Amount:   rapid.OneOf(rapid.Int64Range(0, m.left()), rapid.Int64Range(-1, m.left()+1), rapid.Just(m.left()+1)).Draw(t, "amount"),
		Notify:   rapid.Bool().Draw(t, "notify"),
	}
}

// drawObject draws mostly the provider's object for a refund, and sometimes another.
func drawObject(t *rapid.T, id string) string {
	own := "rp_" + id
	return rapid.SampledFrom([]string{own, own, own, "rp_re_1", "rp_re_2", ""}).Draw(t, "object")
}

func (m *model) drawSuccess(t *rapid.T) domain.Command {
	id := m.drawKnown(t)
	amount := domain.Money{Amount: m.find(id).Amount, Currency: m.charge.Amount.Currency}
	switch rapid.IntRange(0, 7).Draw(t, "what is wrong") {
	case 0:
		amount.Amount++
	case 1:
		amount.Currency = "USD"
	}
	return domain.ResolveRefund{RefundID: id, ProviderRefund: drawObject(t, id), Amount: amount}
}

// drawFailure draws mostly the object that the refund has, and so reverses it if it succeeded.
func (m *model) drawFailure(t *rapid.T) domain.Command {
	id := m.drawKnown(t)
	object := m.find(id).Object
	if object == "" || rapid.IntRange(0, 3).Draw(t, "what is wrong") == 0 {
		object = drawObject(t, id)
	}
	return domain.ResolveRefund{RefundID: id, ProviderRefund: object, Failed: true, Message: "no"}
}
