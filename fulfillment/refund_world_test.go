package fulfillment_test

import (
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
)

// capture makes ch_1 a charge whose 1999 were taken by pi_1. It has no items, so
// the stock stays untouched.
func (w *world) capture() ledger.Stream {
	w.Helper()
	first := order()
	first.Items = nil
	return w.append(ledger.New("ch_1"), first,
		domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"},
		domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_1", Amount: 1999, Currency: "EUR", Fee: 90},
		domain.ChargeSucceeded{})
}

// request asks for a refund, and puts the message about it into the inbox.
func (w *world) request(s ledger.Stream, id string, amount int64) ledger.Stream {
	w.Helper()
	s = w.append(s, domain.RefundRequested{RefundID: id, Amount: amount, Notify: true})
	w.put(fulfillment.ChargeReceiver, s, s.Charge.Version, s.Head().ID.String())
	return s
}

// refunding is a captured charge of which 600 are to go back as re_1, and which
// the provider has no refund of when it is asked first.
func (w *world) refunding() ledger.Stream {
	w.Helper()
	w.provider.on("refunds", lists())
	return w.request(w.capture(), "re_1", 600)
}

// event puts an event of the provider's about ch_1 into the inbox.
func (w *world) event(id, name string) {
	w.Helper()
	b := &pgx.Batch{}
	if err := inbox.Accept(b, fulfillment.ChargeReceiver, inbox.Message{
		ID: id, Type: "stripe." + name, OrderingKey: "ch_1",
		Payload: []byte(`{"id":"` + id + `","type":"` + name + `","charge_id":"ch_1","object":"pi_1"}`),
	}); err != nil {
		w.Fatal(err)
	}
	w.commit(b)
}

// back is a captured charge after more has happened to it.
func back(history, outbox, message string) sight {
	return sight{Events: paid + history, Stock: untouched, Outbox: outbox, Message: message}
}

const (
	asked    = " refund.requested"
	refunded = asked + " refund.succeeded"
)

// takeOver gives the delivery under way to somebody else, who has not begun.
func (w *world) takeOver(answer http.HandlerFunc) http.HandlerFunc {
	return meanwhile(func() { w.exec(`update inbox set fence = fence + 1 where status = 'running'`) }, answer)
}

// charged is a charge of the sandbox's that was captured, without items.
func (w *world) charged(method string) ledger.Stream {
	w.Helper()
	first := order()
	first.Items, first.PaymentMethod = nil, method
	w.accept("ch_1", first)
	w.expectKind(w.deliver(), "done")
	w.expectCalls("create confirm")
	return w.load()
}
