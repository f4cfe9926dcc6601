package e2e_test

import (
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/traffic"
)

// A day passes for everything that goes by the database's clock in a message that
// waits for the provider.
const (
	aDayPasses = `
update inbox
   set received_at   = received_at - interval '24 hours',
       waiting_since = waiting_since - interval '24 hours'
 where status <> 'done'`

	tried = `select coalesce(min(waits), 0) from inbox where type = 'charge.requested.v1' and status <> 'done'`
)

// TestProvider_awayForADay_failsNoCharge: charges are accepted all the while and wait, with
// their stock held, and none fails or becomes a dead letter before GIVE_UP_AFTER. When the
// provider is back they go through by themselves, also where it had worked and only
// its answers were lost, and has forgotten its keys since. What had waited for
// longer than GIVE_UP_AFTER is a dead letter, and succeeds when it is retried.
func TestProvider_awayForADay_failsNoCharge(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 1, oneMerchant: true}) // GIVE_UP_AFTER as it is: three days
	d.setFaults(t, traffic.Faults{DropAfter: 1, ForgetKeysAfter: "1ms"})
	charges := []charge{d.send(t, newOrder(visa)), d.send(t, newOrder(visa)), d.send(t, newOrder(cardDeclined))}

	for day := 1; day <= 2; day++ {
		d.waitMore(t)
		d.exec(t, aDayPasses)
		d.waitMore(t)
	}
	charges = append(charges, d.send(t, newOrder(visa))) // on the third day
	for _, c := range charges {
		if got := d.charge(t.Context(), c.ID); got.Status != "pending" {
			t.Errorf("a charge is %s while the provider is away", got.Status)
		}
	}
	if out := d.payonce(t, "audit", "--quiet", "--no-provider"); len(out) != 0 {
		t.Errorf("the audit complains of charges that wait: %s", out)
	}
	for range 2 { // beyond GIVE_UP_AFTER for the first three
		d.exec(t, aDayPasses)
	}
	await.Row(t, d.tables, `select count(*) = 3 from inbox where status = 'dead'`)
	mustFindAudit(t, d, "no message is stuck")
	d.setFaults(t, traffic.Faults{})
	d.mustEnd(t, charges[3].ID, "succeeded")
	d.retryAll(t)
	for i, want := range []string{"succeeded", "succeeded", "card_declined", "succeeded"} {
		d.mustEnd(t, charges[i].ID, want)
	}
}

// waitMore waits until all that waits has been tried again.
func (d *deployment) waitMore(t *testing.T) {
	t.Helper()
	var before int
	await.True(t, "all of them wait", func() bool { before = row[int](t, d, tried); return before > 0 })
	await.True(t, "they are tried again", func() bool { return row[int](t, d, tried) > before })
}

// retryAll is what the manual says after an outage.
func (d *deployment) retryAll(t *testing.T) {
	t.Helper()
	for _, id := range rows[string](t, d, `select id::text from inbox where status = 'dead' order by id`) {
		d.payonce(t, "inbox", "retry", id)
	}
}
