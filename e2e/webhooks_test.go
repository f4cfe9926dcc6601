package e2e_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"
)

// TestWebhooks replaces the shop's webhook secret while charges are told of, and
// has the shop told once more. Whichever of the secrets the shop knows, it
// believes every delivery at the first try; and what it is told once more has its
// effect once.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	long(t)
	w := newWorld(t, setup{apis: 1, workers: 2, alone: true})
	start := row[time.Time](t, w, `select clock_timestamp()`)
	before := w.carryTold(t)
	old := w.keys.shop

	var made struct {
		Secret string `json:"secret"`
	}
	if err := json.Unmarshal(w.payonce(t, "webhooks", "rotate", "--merchant", merchant, "--json"), &made); err != nil || !strings.HasPrefix(made.Secret, "whsec_") {
		t.Fatalf("made %q: %v", made.Secret, err)
	}
	during := w.carryTold(t) // the shop knows the old one still
	w.shopLearns(t, made.Secret)
	after := w.carryTold(t) // and now the new one alone
	w.payonce(t, "webhooks", "resend", before.ID)
	w.toldTimes(t, before.ID, 2)
	if _, err := w.tables.Exec(t.Context(), `update webhook_secrets set ends_at = clock_timestamp() where ends_at is not null`); err != nil {
		t.Fatal(err)
	}
	last := w.carryTold(t)
	for _, c := range []charge{before, during, after, last} {
		times := 1
		if c.ID == before.ID {
			times = 2
		}
		w.toldTimes(t, c.ID, times)
	}
	if again := row[int64](t, w, `select count(*) from inbox where receiver = 'notification' and (waits > 0 or attempts > 1)`); again != 0 {
		t.Errorf("%d deliveries were not believed at once", again)
	}

	// A shop that is down is told when it is back.
	w.breakOutside(t, faults{ShopDown: true})
	w.payonce(t, "webhooks", "resend", w.webhookID(t, during.ID))
	eventually(t, "the resend waits for the shop", func() bool {
		return row[bool](t, w, `select exists (select from inbox where type = 'webhook.resend' and status = 'pending' and waits > 0)`)
	})
	w.mendOutside(t)
	w.toldTimes(t, during.ID, 2)

	w.payonce(t, "webhooks", "resend", "--merchant", merchant, "--since", start.UTC().Format(time.RFC3339Nano))
	for id, times := range map[string]int{before.ID: 3, during.ID: 3, after.ID: 2, last.ID: 2} {
		w.toldTimes(t, id, times)
	}
	if out, err := w.run(t, "webhooks", "resend", "ch_of_nobody"); exitCode(err) != 1 || len(out) != 0 {
		t.Errorf("a resend of nothing: %v, %s", err, out)
	}
	w.tells(t, before.ID, "webhook")
	table := string(w.payonce(t, "timeline", before.ID))
	if strings.Count(table, "  resend wanted  ") != 2 || strings.Count(table, "  resent  ") != 2 {
		t.Errorf("the timeline does not tell of two resends:\n%s", table)
	}
	listed := string(w.payonce(t, "webhooks", "list"))
	for _, secret := range []string{old, made.Secret} {
		if strings.Contains(listed+table, strings.TrimPrefix(secret, "whsec_")) {
			t.Errorf("a secret is shown:\n%s%s", listed, table)
		}
	}
}

// carryTold carries a charge until the shop was told of its end.
func (w *world) carryTold(t *testing.T) charge {
	t.Helper()
	c := w.carry(t, newOrder(visa))
	w.toldTimes(t, c.ID, 1)
	return c
}

// toldTimes waits until the shop was told so often of a charge, and wants that to
// have had one effect.
func (w *world) toldTimes(t *testing.T, id string, times int) {
	t.Helper()
	var told []notification
	if !within(endPatience, func() bool {
		told = w.books(t).of(id).told
		return len(told) == 1 && told[0].Deliveries >= times && row[bool](t, w, `
select not exists (
         select
           from inbox
          where ordering_key = $1
            and status <> 'done')`, id)
	}) {
		t.Fatalf("%s: told %+v, want %d deliveries: %s", id, told, times, w.messagesOf(t, id))
	}
	if told[0].Deliveries != times || told[0].Effects != 1 {
		t.Errorf("%s: told %+v, want %d deliveries and one effect", id, told[0], times)
	}
}

// webhookID is the id under which the shop was told of a charge.
func (w *world) webhookID(t *testing.T, id string) string {
	t.Helper()
	return w.books(t).of(id).told[0].WebhookID
}

// shopLearns gives the shop another secret, and it knows no other from then on.
func (w *world) shopLearns(t *testing.T, secret string) {
	t.Helper()
	address := strings.TrimPrefix(w.sandbox.URL(), "http://")
	stop(t, w.sandbox)
	env := maps.Clone(w.outside)
	env["SHOP_WEBHOOK_SECRET"], env["HTTP_ADDR"] = secret, address
	w.keys.shop = secret
	if w.sandbox = w.start(t, "sandbox", binaries(t).Sandbox, env); w.sandbox == nil {
		t.FailNow()
	}
}
