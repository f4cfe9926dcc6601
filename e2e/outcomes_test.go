package e2e_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func chargeSucceeds(t *testing.T, d *deployment) {
	t.Helper()
	start := time.Now()
	o := newOrder(visa, item{"tshirt", 2}, item{"mug", 1})
	got := d.insist(t, request{key: "key-" + unique(), body: o.body(t)})
	accepted := acceptedCharge(t, got)
	if location := got.Header.Get("Location"); location != "/v1/charges/"+accepted.ID {
		t.Errorf("accepted %s at %q", accepted.ID, location)
	}
	if age := accepted.CreatedAt.Sub(start); age < -time.Minute || age > time.Minute {
		t.Errorf("created at %s, sent at %s", accepted.CreatedAt, start)
	}
	want := charge{
		ID: accepted.ID, OrderID: o.OrderID, Amount: 1000, Currency: "USD", Status: "pending", CreatedAt: accepted.CreatedAt,
		Steps: []step{{"inventory", "pending"}, {"payment", "pending"}, {"notification", "pending"}},
	}
	if diff := cmp.Diff(want, accepted); diff != "" {
		t.Errorf("the accepted charge (-want +got):\n%s", diff)
	}
	want.Status = "succeeded"
	want.Steps = []step{{"inventory", "done"}, {"payment", "done"}, {"notification", "done"}}
	if diff := cmp.Diff(want, d.await(t, accepted.ID)); diff != "" {
		t.Errorf("the charge in the end (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"charge.requested", "inventory.reserved", "payment.started", "payment.captured", "charge.succeeded", "merchant.notified",
	}, d.story(t, accepted.ID)); diff != "" {
		t.Errorf("its events (-want +got):\n%s", diff)
	}
	e := d.recordsOf(t, accepted.ID)
	if e.captures != 1 || !cmp.Equal(e.intents, []string{"succeeded"}) || len(e.notified) != 1 || e.notified[0].Effects != 1 {
		t.Errorf("the provider and the shop recorded %+v, want one intent, one capture, one effect", e)
	}
	balanced(t, d, accepted.ID)
}

// openBalances are the accounts on which a charge left a balance that is not zero,
// with its currency's smallest units.
func openBalances(t *testing.T, d *deployment, id string) []string {
	t.Helper()
	return rows[string](t, d, `
select format('%s %s', account, sum(amount))
  from (
        select debit as account, amount
          from ledger_postings
         where stream_id = $1
         union all
        select credit, -amount
          from ledger_postings
         where stream_id = $1) legs
 group by account
having sum(amount) <> 0
 order by account`, id)
}

// balanced checks the postings: those of one charge, and the sums of all.
func balanced(t *testing.T, d *deployment, id string) {
	t.Helper()
	want := []string{"fee_revenue:payonce:USD -30", "merchant_payable:" + d.merchantOf(t, id) + ":USD -970", "psp_receivable:stripe:USD 1000"}
	if diff := cmp.Diff(want, openBalances(t, d, id)); diff != "" {
		t.Errorf("balances of %s (-want +got):\n%s", id, diff)
	}
	balances := balancesOf(t, d.do(t, request{method: http.MethodGet, path: "/v1/balances"}))
	if len(balances) == 0 {
		t.Error("there are no balances")
	}
	sums := map[string]int64{}
	for _, b := range balances {
		if b.Balance != b.Debits-b.Credits {
			t.Errorf("balance %+v is not debits less credits", b)
		}
		sums[b.Currency] += b.Balance
	}
	for currency, sum := range sums {
		if sum != 0 {
			t.Errorf("balances in %s sum to %d", currency, sum)
		}
	}
}

// outcome is a charge that does not simply succeed, with what must come of it.
type outcome struct {
	name    string
	method  string
	items   []item
	steps   string
	failure *failure // its message is not compared
	story   []string
	intents []string // at the provider
}

const (
	soldOut   = "inventory failed, payment skipped, notification done"
	givenBack = "inventory compensated, payment failed, notification done"
	allDone   = "inventory done, payment done, notification done"
)

func outcomes() []outcome {
	declined := []string{
		"charge.requested", "inventory.reserved", "payment.started", "payment.declined", "inventory.released", "charge.failed", "merchant.notified",
	}
	rejected := []string{"charge.requested", "inventory.rejected", "charge.failed", "merchant.notified"}
	captured := []string{"charge.requested", "inventory.reserved", "payment.started", "payment.captured", "charge.succeeded", "merchant.notified"}
	canceled := []string{"canceled"}
	return []outcome{
		{"a declined card gives the stock back", cardDeclined, []item{{"mug", 3}}, givenBack, &failure{"card_declined", "", "generic_decline"}, declined, canceled},
		{"insufficient funds have their decline code", insufficientFunds, nil, givenBack, &failure{"card_declined", "", "insufficient_funds"}, declined, canceled},
		{"a card that wants authentication fails", authentication, nil, givenBack, &failure{Code: "authentication_required"}, declined, canceled},
		{"an unknown payment method is refused by the provider", nobodysCard, nil, givenBack, &failure{Code: "provider_refused"}, []string{
			"charge.requested", "inventory.reserved", "payment.declined", "inventory.released", "charge.failed", "merchant.notified",
		}, nil},
		{"an unknown article never reaches the provider", visa, []item{{"tshirt", 1}, {"unicorn", 1}}, soldOut, &failure{Code: "unknown_sku"}, rejected, nil},
		{"an article out of stock never reaches the provider", visa, []item{{"rarity", 1}}, soldOut, &failure{Code: "out_of_stock"}, rejected, nil},
		{"more than there is of an article never reaches the provider", visa, []item{{"mug", 1_000_000}}, soldOut, &failure{Code: "out_of_stock"}, rejected, nil},
		{"a charge without items skips the inventory", visa, []item{}, "inventory skipped, payment done, notification done", nil, []string{
			"charge.requested", "payment.started", "payment.captured", "charge.succeeded", "merchant.notified",
		}, []string{"succeeded"}},
		{"a declined charge without items gives nothing back", cardDeclined, []item{}, "inventory skipped, payment failed, notification done", &failure{"card_declined", "", "generic_decline"}, []string{
			"charge.requested", "payment.started", "payment.declined", "charge.failed", "merchant.notified",
		}, canceled},
		{"a payment that is processing succeeds later", slowCard, nil, allDone, nil, captured, []string{"succeeded"}},
	}
}

func (o outcome) check(t *testing.T, d *deployment) {
	t.Helper()
	got := d.process(t, newOrder(o.method, o.items...))
	status := "succeeded"
	if o.failure != nil {
		status = "failed"
	}
	if got.Status != status || got.steps() != o.steps {
		t.Errorf("the charge is %s with %q, want %s with %q", got.Status, got.steps(), status, o.steps)
	}
	if (got.Failure == nil) != (o.failure == nil) {
		t.Fatalf("its failure is %+v, want %+v", got.Failure, o.failure)
	}
	if o.failure != nil {
		if got.Failure.Message == "" {
			t.Error("its failure has no message")
		}
		if got.Failure.Code != o.failure.Code || o.failure.DeclineCode != "" && got.Failure.DeclineCode != o.failure.DeclineCode {
			t.Errorf("its failure is %+v, want %+v", got.Failure, o.failure)
		}
	}
	if diff := cmp.Diff(o.story, d.story(t, got.ID)); diff != "" {
		t.Errorf("its events (-want +got):\n%s", diff)
	}
	e := d.recordsOf(t, got.ID)
	if diff := cmp.Diff(o.intents, e.intents); diff != "" {
		t.Errorf("its intents at the provider (-want +got):\n%s", diff)
	}
	if len(e.notified) != 1 || e.notified[0].Type != "charge."+status || e.notified[0].Effects != 1 {
		t.Errorf("the shop was notified %+v, want charge.%s once", e.notified, status)
	}
	end := map[string]string{"succeeded": "sold", "failed": "released"}[status]
	mustRead(t, d, 0, `select count(*) from reservations where charge_id = $1 and status <> $2`, got.ID, end)
}

func lastPiece(t *testing.T, d *deployment) {
	t.Helper()
	charges := atOnce(10, func() charge {
		c, err := d.client.accept(t.Context(), newOrder(visa, item{"poster", 1}))
		if err != nil {
			t.Error(err)
		}
		return c
	})
	ends := map[string]int{}
	for _, c := range charges {
		ends[d.await(t, c.ID).outcome()]++
	}
	if diff := cmp.Diff(map[string]int{"succeeded": 1, "out_of_stock": 9}, ends); diff != "" {
		t.Errorf("how ten charges for one piece ended (-want +got):\n%s", diff)
	}
}
