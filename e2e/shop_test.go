package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// shopsDay writes the transcript of a day. It knows how many events of each charge it has
// written.
type shopsDay struct {
	*deployment
	transcript strings.Builder
	written    map[string]int
}

// TestShopsDay lives one day of a shop with a deployment, and compares its transcript with the
// page that shows it. A data race of the api or the worker fails it.
func TestShopsDay(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	s := setup{apis: 2, workers: 2, providerEvents: true, workerEnv: longLease(), detectRaces: true}
	d := &shopsDay{deployment: deploy(t, s), written: map[string]int{}}
	const paid = "charge.requested, inventory.reserved, payment.started, payment.captured, charge.succeeded, merchant.notified"
	disputed, returned := d.send(t, newOrder(visa)).ID, d.send(t, newOrder(visa)).ID
	d.happens(t, "order 1 of 10.00 USD is paid", disputed, paid)
	d.happens(t, "order 2 of 10.00 USD is paid", returned, paid)
	acts := d.send(t, newAction()).ID
	d.happens(t, "order 3 of 10.00 USD needs the customer", acts, "charge.requested, inventory.reserved, payment.started, payment.action_required, merchant.notified")
	must(t, authenticate(t.Context(), d.read(t.Context(), "/v1/charges/"+acts), "succeeded"))
	d.happens(t, "the customer of order 3 authenticates", acts, "payment.captured, charge.succeeded, merchant.notified")
	d.happens(t, "order 4 of 10.00 USD is declined", d.send(t, newOrder(cardDeclined)).ID,
		"charge.requested, inventory.reserved, payment.started, payment.declined, inventory.released, charge.failed, merchant.notified")
	must(t, d.sandbox().Dispute(t.Context(), d.intentOf(t, disputed), ""))
	d.happens(t, "the bank disputes order 1", disputed, "charge.dispute_opened, charge.dispute_withdrawn, merchant.notified, merchant.notified")
	must(t, d.sandbox().Refund(t.Context(), d.intentOf(t, returned), 400))
	d.happens(t, "4.00 of order 2 are refunded in the provider's dashboard", returned, "refund.observed, merchant.notified")

	// Three captures of 1000 with a fee of 30 each. The dispute takes 1000 and a fee of 1500,
	// the refund 400.
	d.hasBalances(t, "while the dispute is open", map[string]int64{
		"psp_receivable:stripe": 3000 - 2500 - 400, "merchant_payable:acme": 2500 + 400 - 3*970, "fee_revenue:payonce": -90,
	})
	must(t, d.sandbox().Dispute(t.Context(), d.intentOf(t, disputed), "lost"))
	d.happens(t, "the dispute of order 1 is lost", disputed, "charge.dispute_closed, merchant.notified")
	must(t, d.sandbox().Dispute(t.Context(), d.intentOf(t, disputed), "won"))
	d.happens(t, "the bank decides again, and the dispute of order 1 is won", disputed,
		"charge.dispute_reinstated, charge.dispute_closed, merchant.notified, merchant.notified")
	d.hasBalances(t, "in the end", map[string]int64{
		"psp_receivable:stripe": 3000 - 400, "merchant_payable:acme": 400 - 3*970, "fee_revenue:payonce": -90,
	})
	d.drain(t)
	d.payonce(t, "audit") // exits with 1 if it finds something
	d.transcript.WriteString("payonce audit: ok, with the provider's lists\n")
	t.Log("\n" + d.transcript.String())
	if !strings.Contains(readFile(t, "../docs/reference/sandbox.md"), "\n```\n"+d.transcript.String()+"```\n") {
		t.Error("docs/reference/sandbox.md shows another transcript")
	}
}

// happens waits until a charge has these events, and no others since the last time.
func (d *shopsDay) happens(t *testing.T, what, id, events string) {
	t.Helper()
	var got string
	testrun.Progress(t, what, func() (string, bool) {
		got = strings.Join(d.story(t, id)[d.written[id]:], ", ")
		return got, strings.Count(got, ",") >= strings.Count(events, ",") && got != ""
	})
	testrun.Same(t, what, events, got)
	d.written[id] += strings.Count(got, ",") + 1
	fmt.Fprintf(&d.transcript, "%s\n    %s\n", what, got)
}

// intentOf is the provider's payment intent of a charge.
func (d *deployment) intentOf(t *testing.T, id string) string {
	t.Helper()
	return intentIn(d.records(t), id)
}

func intentIn(b harness.Books, id string) string {
	return b.Intents[slices.IndexFunc(b.Intents, func(i harness.Intent) bool { return i.Reference == id })].ID
}

// hasBalances compares the merchant's balances that are not 0, in cents.
func (d *shopsDay) hasBalances(t *testing.T, when string, want map[string]int64) {
	t.Helper()
	var books struct {
		Data []struct {
			Account string
			Balance int64
		}
	}
	d.get(t, "/v1/balances", &books)
	got := map[string]int64{}
	fmt.Fprintf(&d.transcript, "balances %s, in cents\n", when)
	for _, b := range books.Data {
		if b.Balance != 0 {
			got[b.Account] = b.Balance
			fmt.Fprintf(&d.transcript, "    %-24s %6d\n", b.Account, b.Balance)
		}
	}
	testrun.Same(t, "balances "+when, want, got)
}
