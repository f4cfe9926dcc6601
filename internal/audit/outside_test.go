package audit_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/audit"
)

// booked are the books of an outside that did what the ledger of newWorld says.
func booked(w *world) audit.Books {
	w.Helper()
	var b audit.Books
	notified := func(reference, kind, stored string) {
		var id string
		err := w.db.QueryRow(w.Context(), `
select event_id::text
  from ledger_events
 where type = $2
   and coalesce(data ->> 'refund_id', stream_id) = $1`, reference, stored).Scan(&id)
		if err != nil {
			w.Fatal(err)
		}
		b.Notifications = append(b.Notifications, audit.BookedNotification{
			WebhookID: id, Reference: reference, Type: kind, Deliveries: 2, Effects: 1,
		})
	}
	for _, name := range []string{"sold", "bought", "undelivered", "refunded"} {
		id := w.charges[name]
		b.Captures = append(b.Captures, audit.BookedMoney{Reference: id, Amount: 1000, Currency: "usd"})
		notified(id, "charge.succeeded", "charge.succeeded.v1")
	}
	for _, name := range []string{"declined", "canceled"} {
		notified(w.charges[name], "charge.failed", "charge.failed.v1")
	}
	b.Refunds = append(b.Refunds, audit.BookedMoney{Reference: w.charges["part"], Amount: 400})
	notified(w.charges["part"], "refund.succeeded", "refund.succeeded.v1")
	notified(w.charges["bounced"], "refund.failed", "refund.failed.v1")
	notified(w.charges["reversed"], "refund.succeeded", "refund.succeeded.v1")
	notified(w.charges["reversed"], "refund.failed", "refund.reversed.v1")
	return b
}

func TestCompareBooks(t *testing.T) {
	t.Parallel()
	const (
		taken          = "books: a succeeded charge was captured once, in full, and a failed one never"
		takenOf        = "books: every capture is a finished charge's"
		given          = "books: a succeeded refund was given back once, in full, and a failed one never"
		givenOf        = "books: every refund given is a finished one"
		notifiedOnce   = "books: every outcome was told, and took effect at the merchant's once"
		notifiedOthers = "books: the merchant was told of outcomes alone"
	)
	w := newWorld(t)
	compare := func(t *testing.T, b audit.Books) []audit.Check {
		t.Helper()
		checks, err := audit.CompareBooks(t.Context(), w.db, b)
		if err != nil {
			t.Fatal(err)
		}
		return checks
	}
	perfect := booked(w)
	for _, c := range compare(t, perfect) {
		if c.Violated != 0 || c.Checked == 0 {
			t.Errorf("books that are right: %+v", c)
		}
	}
	for name, test := range map[string]struct {
		plant func(*audit.Books)
		found []string
	}{
		"nothing at all":           {func(b *audit.Books) { *b = audit.Books{} }, []string{taken, given, notifiedOnce}},
		"a capture twice":          {func(b *audit.Books) { b.Captures = append(b.Captures, b.Captures[0]) }, []string{taken}},
		"a capture of too much":    {func(b *audit.Books) { b.Captures[0].Amount++ }, []string{taken}},
		"a capture in other money": {func(b *audit.Books) { b.Captures[0].Currency = "chf" }, []string{taken}},
		"a capture of a failed charge": {func(b *audit.Books) {
			b.Captures = append(b.Captures, audit.BookedMoney{Reference: w.charges["declined"]})
		}, []string{taken}},
		"a capture for no charge": {func(b *audit.Books) {
			b.Captures = append(b.Captures, audit.BookedMoney{Reference: "ch_nobody"})
		}, []string{takenOf}},
		"a refund twice":       {func(b *audit.Books) { b.Refunds = append(b.Refunds, b.Refunds[0]) }, []string{given}},
		"a refund of too much": {func(b *audit.Books) { b.Refunds[0].Amount++ }, []string{given}},
		"a refund that failed and was given": {func(b *audit.Books) {
			b.Refunds = append(b.Refunds, audit.BookedMoney{Reference: w.charges["bounced"], Amount: 200})
		}, []string{given}},
		"a refund that was reversed and stayed given": {func(b *audit.Books) {
			b.Refunds = append(b.Refunds, audit.BookedMoney{Reference: w.charges["reversed"], Amount: 100})
		}, []string{given}},
		"a refund for no refund of ours": {func(b *audit.Books) {
			b.Refunds = append(b.Refunds, audit.BookedMoney{Reference: "re_nobody"})
		}, []string{givenOf}},
		"an outcome without a webhook": {func(b *audit.Books) { b.Notifications = b.Notifications[1:] }, []string{notifiedOnce}},
		"an effect twice":              {func(b *audit.Books) { b.Notifications[0].Effects = 2 }, []string{notifiedOnce}},
		"a webhook of the contrary":    {func(b *audit.Books) { b.Notifications[0].Type = "charge.failed" }, []string{notifiedOnce}},
		"a webhook of another charge":  {func(b *audit.Books) { b.Notifications[0].Reference = "ch_other" }, []string{notifiedOnce}},
		"a webhook under another ID":   {func(b *audit.Books) { b.Notifications[0].WebhookID = "w1" }, []string{notifiedOnce, notifiedOthers}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := audit.Books{
				Captures: slices.Clone(perfect.Captures), Refunds: slices.Clone(perfect.Refunds),
				Notifications: slices.Clone(perfect.Notifications),
			}
			test.plant(&b)
			want := slices.Sorted(slices.Values(test.found))
			if diff := cmp.Diff(want, slices.Sorted(maps.Keys(violated(compare(t, b))))); diff != "" {
				t.Errorf("violated (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCompareBooks_readsTheProvidersMinorUnits: the books of the outside are in the
// provider's minor units, the ledger is in those of ISO 4217.
func TestCompareBooks_readsTheProvidersMinorUnits(t *testing.T) {
	t.Parallel()
	for code, factor := range map[string]struct{ times, by int64 }{"ISK": {100, 1}, "UGX": {100, 1}, "MGA": {1, 100}, "KWD": {1, 1}} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec(fmt.Sprintf(`
alter table ledger_events disable trigger ledger_events_append_only;
update ledger_events set data = jsonb_set(data, '{currency}', '"%s"') where type = 'charge.requested.v1'`, code))
			compare := func(b audit.Books) map[string]bool {
				t.Helper()
				checks, err := audit.CompareBooks(t.Context(), w.db, b)
				if err != nil {
					t.Fatal(err)
				}
				return violated(checks)
			}
			b := booked(w)
			for i := range b.Captures {
				b.Captures[i].Amount = b.Captures[i].Amount * factor.times / factor.by
				b.Captures[i].Currency = strings.ToLower(code)
			}
			b.Refunds[0].Amount = b.Refunds[0].Amount * factor.times / factor.by
			if got := compare(b); len(got) != 0 {
				t.Errorf("violated: %v", got)
			}
			b.Captures[0].Amount *= 100
			b.Refunds[0].Amount *= 100
			if got := compare(b); len(got) != 2 {
				t.Errorf("100 times the amount moved, twice, and violated is %v", got)
			}
		})
	}
}
