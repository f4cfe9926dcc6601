package e2e_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/traffic"
)

// TestWebhooks_rotationAndResend_haveOneEffect rotates the shop's webhook
// secret while charges are processed, and resends webhooks. Whichever of the secrets the
// shop has, it accepts every delivery at the first attempt; and a webhook that is resent
// has its effect once.
func TestWebhooks_rotationAndResend_haveOneEffect(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 2, oneMerchant: true, workerEnv: longLease()})
	start := row[time.Time](t, d, `select clock_timestamp()`)
	before := d.processNotified(t)

	var made struct {
		Secret string `json:"secret"`
	}
	if err := json.Unmarshal(d.payonce(t, "webhooks", "rotate", "--merchant", merchant, "--json"), &made); err != nil || !strings.HasPrefix(made.Secret, "whsec_") {
		t.Fatalf("made %q: %v", made.Secret, err)
	}
	during := d.processNotified(t) // the shop knows the old one still
	d.shopLearns(t, made.Secret)
	after := d.processNotified(t) // and now the new one alone
	d.payonce(t, "webhooks", "resend", before.ID)
	d.mustBeDelivered(t, before.ID, 2)
	d.exec(t, `update webhook_secrets set ends_at = clock_timestamp() where ends_at is not null`)
	last := d.processNotified(t)
	for _, c := range []charge{before, during, after, last} {
		times := 1
		if c.ID == before.ID {
			times = 2
		}
		d.mustBeDelivered(t, c.ID, times)
	}
	// Each delivery was accepted at the first attempt.
	mustRead(t, d, 0, `select count(*) from inbox where receiver = 'notification' and (waits > 0 or attempts > 1)`)

	// A shop that was down receives what was resent meanwhile.
	d.setFaults(t, traffic.Faults{ShopDown: true})
	d.payonce(t, "webhooks", "resend", d.webhookID(t, during.ID))
	await.Row(t, d.tables, `select exists (select from inbox where type = 'webhook.resend' and status = 'pending' and waits > 0)`)
	d.setFaults(t, traffic.Faults{})
	d.mustBeDelivered(t, during.ID, 2)

	d.payonce(t, "webhooks", "resend", "--merchant", merchant, "--since", start.UTC().Format(time.RFC3339Nano))
	for id, times := range map[string]int{before.ID: 3, during.ID: 3, after.ID: 2, last.ID: 2} {
		d.mustBeDelivered(t, id, times)
	}
	timeline := d.mustShow(t, before.ID, "webhook")
	if strings.Count(timeline, "  resend wanted  ") != 2 || strings.Count(timeline, "  resent  ") != 2 {
		t.Errorf("the timeline does not tell of two resends:\n%s", timeline)
	}
}

// processNotified processes a charge and waits until the shop was notified.
func (d *deployment) processNotified(t *testing.T) charge {
	t.Helper()
	c := d.process(t, newOrder(visa))
	d.mustBeDelivered(t, c.ID, 1)
	return c
}

// mustBeDelivered waits until the webhook of a charge was delivered so often, and
// requires one effect.
func (d *deployment) mustBeDelivered(t *testing.T, id string, times int) {
	t.Helper()
	var seen []traffic.Notification
	if !await.Within(await.Stall, func() bool {
		seen = d.recordsOf(t, id).notified
		return len(seen) == 1 && seen[0].Deliveries >= times && row[bool](t, d, `
select not exists (
         select
           from inbox
          where ordering_key = $1
            and status <> 'done')`, id)
	}) {
		t.Fatalf("%s: notified %+v, want %d deliveries: %s", id, seen, times, d.messagesOf(t, id))
	}
	if seen[0].Deliveries != times || seen[0].Effects != 1 {
		t.Errorf("%s: notified %+v, want %d deliveries and one effect", id, seen[0], times)
	}
}

// webhookID is the id of the webhook about a charge.
func (d *deployment) webhookID(t *testing.T, id string) string {
	t.Helper()
	return d.recordsOf(t, id).notified[0].WebhookID
}

// shopLearns gives the shop another secret; it knows no other from then on.
func (d *deployment) shopLearns(t *testing.T, secret string) {
	t.Helper()
	stop(t, d.Sandbox)
	d.Secrets.Shop = secret
	env := d.SandboxEnv("")
	env["HTTP_ADDR"] = strings.TrimPrefix(d.Sandbox.URL(), "http://")
	var err error
	if d.Sandbox, err = d.Start(t.Context(), "sandbox", d.Binaries.Sandbox, env); err != nil {
		t.Fatal(err)
	}
}
