package audit_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/audit"
)

// books are those of a provider and a shop that did what the fixture's ledger says.
func (f *fixture) books(t *testing.T) audit.Books {
	t.Helper()
	var b audit.Books
	for _, name := range []string{"sold", "bought", "undelivered", "refunded"} {
		b.Captures = append(b.Captures, audit.BookedMoney{Reference: f.ids[name], Amount: 1000, Currency: "usd"})
	}
	b.Refunds = append(b.Refunds, audit.BookedMoney{Reference: f.ids["part"], Amount: 400})
	for _, n := range [][3]string{
		{"sold", "charge.succeeded", "charge.succeeded.v1"},
		{"bought", "charge.succeeded", "charge.succeeded.v1"},
		{"undelivered", "charge.succeeded", "charge.succeeded.v1"},
		{"refunded", "charge.succeeded", "charge.succeeded.v1"},
		{"declined", "charge.failed", "charge.failed.v1"},
		{"canceled", "charge.failed", "charge.failed.v1"},
		{"part", "refund.succeeded", "refund.succeeded.v1"},
		{"bounced", "refund.failed", "refund.failed.v1"},
		{"reversed", "refund.succeeded", "refund.succeeded.v1"},
		{"reversed", "refund.failed", "refund.reversed.v1"},
	} {
		var id string
		err := f.db.QueryRow(t.Context(), `
select event_id::text
  from ledger_events
 where type = $2
   and coalesce(data ->> 'refund_id', stream_id) = $1`, f.ids[n[0]], n[2]).Scan(&id)
		if err != nil {
			t.Fatal(err)
		}
		b.Notifications = append(b.Notifications, audit.BookedNotification{
			WebhookID: id, Reference: f.ids[n[0]], Type: n[1], Deliveries: 2, Effects: 1,
		})
	}
	return b
}

func (f *fixture) compare(t *testing.T, b audit.Books) []audit.Check {
	t.Helper()
	checks, err := audit.CompareBooks(t.Context(), f.db.Pool(), b)
	if err != nil {
		t.Fatal(err)
	}
	return checks
}

func TestCompareBooks(t *testing.T) {
	t.Parallel()
	const (
		taken          = "records: a succeeded charge was captured once, in full, and a failed one never"
		takenOf        = "records: every capture is of a finished charge"
		given          = "records: a succeeded refund was returned once, in full, and a failed one never"
		givenOf        = "records: every refund is a finished refund of the ledger"
		notifiedOnce   = "records: every outcome reached the merchant, and took effect there once"
		notifiedOthers = "records: the merchant was notified of outcomes only"
	)
	f := newFixture(t)
	perfect := f.books(t)
	for _, c := range f.compare(t, perfect) {
		if c.Violated != 0 || c.Checked == 0 {
			t.Errorf("books that are right: %+v", c)
		}
	}
	captured := func(reference string) func(*audit.Books) {
		return func(b *audit.Books) { b.Captures = append(b.Captures, audit.BookedMoney{Reference: reference}) }
	}
	returned := func(reference string, amount int64) func(*audit.Books) {
		return func(b *audit.Books) {
			b.Refunds = append(b.Refunds, audit.BookedMoney{Reference: reference, Amount: amount})
		}
	}
	for name, test := range map[string]struct {
		plant func(*audit.Books)
		found []string
	}{
		"nothing at all":                              {func(b *audit.Books) { *b = audit.Books{} }, []string{taken, given, notifiedOnce}},
		"a capture twice":                             {func(b *audit.Books) { b.Captures = append(b.Captures, b.Captures[0]) }, []string{taken}},
		"a capture of too much":                       {func(b *audit.Books) { b.Captures[0].Amount++ }, []string{taken}},
		"a capture in other money":                    {func(b *audit.Books) { b.Captures[0].Currency = "chf" }, []string{taken}},
		"a capture of a failed charge":                {captured(f.ids["declined"]), []string{taken}},
		"a capture for no charge":                     {captured("ch_nobody"), []string{takenOf}},
		"a refund twice":                              {func(b *audit.Books) { b.Refunds = append(b.Refunds, b.Refunds[0]) }, []string{given}},
		"a refund of too much":                        {func(b *audit.Books) { b.Refunds[0].Amount++ }, []string{given}},
		"a refund that failed and was given":          {returned(f.ids["bounced"], 200), []string{given}},
		"a refund that was reversed and stayed given": {returned(f.ids["reversed"], 100), []string{given}},
		"a refund for no refund of ours":              {returned("re_nobody", 0), []string{givenOf}},
		"an outcome without a webhook":                {func(b *audit.Books) { b.Notifications = b.Notifications[1:] }, []string{notifiedOnce}},
		"an effect twice":                             {func(b *audit.Books) { b.Notifications[0].Effects = 2 }, []string{notifiedOnce}},
		"a webhook of the contrary":                   {func(b *audit.Books) { b.Notifications[0].Type = "charge.failed" }, []string{notifiedOnce}},
		"a webhook of another charge":                 {func(b *audit.Books) { b.Notifications[0].Reference = "ch_other" }, []string{notifiedOnce}},
		"a webhook under another ID":                  {func(b *audit.Books) { b.Notifications[0].WebhookID = "w1" }, []string{notifiedOnce, notifiedOthers}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := audit.Books{
				Captures: slices.Clone(perfect.Captures), Refunds: slices.Clone(perfect.Refunds),
				Notifications: slices.Clone(perfect.Notifications),
			}
			test.plant(&b)
			if diff := cmp.Diff(sorted(test.found), violated(f.compare(t, b))); diff != "" {
				t.Errorf("violated (-want +got):\n%s", diff)
			}
		})
	}
}

// The records are in the provider's minor units, the ledger is in those of ISO 4217.
func TestCompareBooks_readsTheProvidersMinorUnits(t *testing.T) {
	t.Parallel()
	for code, factor := range map[string]struct{ times, by int64 }{"ISK": {100, 1}, "UGX": {100, 1}, "MGA": {1, 100}, "KWD": {1, 1}} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.exec(fmt.Sprintf(`
alter table ledger_events disable trigger ledger_events_append_only;
update ledger_events set data = jsonb_set(data, '{currency}', '"%s"') where type = 'charge.requested.v1'`, code))
			b := f.books(t)
			for i := range b.Captures {
				b.Captures[i].Amount = b.Captures[i].Amount * factor.times / factor.by
				b.Captures[i].Currency = strings.ToLower(code)
			}
			b.Refunds[0].Amount = b.Refunds[0].Amount * factor.times / factor.by
			if got := violated(f.compare(t, b)); len(got) != 0 {
				t.Errorf("violated: %v", got)
			}
			b.Captures[0].Amount *= 100
			b.Refunds[0].Amount *= 100
			if got := violated(f.compare(t, b)); len(got) != 2 {
				t.Errorf("100 times the amount moved, twice, and violated is %v", got)
			}
		})
	}
}
