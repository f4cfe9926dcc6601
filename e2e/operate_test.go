package e2e_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// deadLetter is what operators see of a message.
type deadLetter struct {
	ID          int64  `json:"id"`
	Receiver    string `json:"receiver"`
	Type        string `json:"type"`
	OrderingKey string `json:"ordering_key"`
	Status      string `json:"status"`
	LastError   string `json:"last_error"`
}

// TestInbox_deadLetters_areRetriedOrDiscarded makes dead letters of two charges' messages: the provider is
// unavailable for too long. An operator retries one of them. The other charge is
// canceled, which its dead letter does not block, and the operator discards the
// dead letter.
func TestInbox_deadLetters_areRetriedOrDiscarded(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 1, oneMerchant: true, workerEnv: map[string]string{"GIVE_UP_AFTER": "300ms"}})
	d.setFaults(t, harness.Faults{DropBefore: 1})
	key := "key-" + unique()
	retried := acceptedCharge(t, d.insist(t, request{key: key, body: newOrder(visa).body(t)}))
	discarded := d.send(t, newOrder(visa))
	dead := d.awaitDeadLetters(t, retried.ID, discarded.ID)
	mustFindAudit(t, d, "no message is overdue or a dead letter")

	number := strconv.FormatInt(dead[retried.ID].ID, 10)
	one := d.payonce(t, "inbox", "show", number)
	for _, want := range []string{"dead", retried.ID, "waiting", `"charge_id"`} {
		if !strings.Contains(string(one), want) {
			t.Errorf("show does not show %q:\n%s", want, one)
		}
	}
	d.setFaults(t, harness.Faults{})

	d.payonce(t, "inbox", "retry", number)
	d.mustEnd(t, retried.ID, "succeeded")

	if got := d.cancel(t, discarded.ID); got.Status != http.StatusAccepted {
		t.Fatalf("answered %d %s", got.Status, got.Body)
	}
	d.mustEnd(t, discarded.ID, "canceled")
	number = strconv.FormatInt(dead[discarded.ID].ID, 10)
	d.payonce(t, "inbox", "discard", number)
	if out, err := d.run(t, "inbox", "discard", number); exitCode(err) != 1 {
		t.Errorf("a second decision ends with %v: %s", err, out)
	}
	d.drain(t)
	if left := d.deadLetters(t); len(left) != 0 {
		t.Errorf("dead letters are left: %v", left)
	}
	if out := d.payonce(t, "audit", "--quiet"); len(out) != 0 {
		t.Errorf("a quiet audit prints %q", out)
	}

	for _, name := range []string{retried.ID, key} {
		d.mustShow(t, name, "key", "event", "inbox", "webhook", "provider")
	}
	d.mustShow(t, discarded.ID, "key", "event", "inbox", "webhook")
}

// awaitDeadLetters waits until each of these charges has a dead letter.
func (d *deployment) awaitDeadLetters(t *testing.T, charges ...string) map[string]deadLetter {
	t.Helper()
	await.Row(t, d.tables, `select count(*) = $1 from inbox where status = 'dead'`, len(charges))
	listed := d.deadLetters(t)
	for _, id := range charges {
		if m := listed[id]; m.Receiver != "fulfillment" || m.Type != "charge.requested.v1" || m.Status != "dead" || m.LastError == "" {
			t.Errorf("the dead letter is %+v", m)
		}
	}
	return listed
}

// deadLetters are the dead letters by their charges, as the tool lists them.
func (d *deployment) deadLetters(t *testing.T) map[string]deadLetter {
	t.Helper()
	var list struct {
		Data []deadLetter `json:"data"`
	}
	must(t, json.Unmarshal(d.payonce(t, "inbox", "list", "--json"), &list))
	messages := map[string]deadLetter{}
	for _, m := range list.Data {
		messages[m.OrderingKey] = m
	}
	return messages
}

// mustFindAudit wants the audit for cron to end with 1 and to say one thing.
func mustFindAudit(t *testing.T, d *deployment, check string) {
	t.Helper()
	out, err := d.run(t, "audit", "--quiet")
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if exitCode(err) != 1 || slices.ContainsFunc(lines, func(line string) bool { return !strings.HasPrefix(line, check+": ") }) {
		t.Errorf("audit ended with %v and printed\n%s", err, out)
	}
}

// exitCode is that of a program that ended with an error, 0 of one that did not.
func exitCode(err error) int {
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) {
		return ended.ExitCode()
	}
	return 0
}

// mustShow requires each of the kinds in a timeline, and returns it.
func (d *deployment) mustShow(t *testing.T, name string, kinds ...string) (timeline string) {
	t.Helper()
	timeline = string(d.payonce(t, "timeline", name))
	for _, kind := range kinds {
		if !strings.Contains(timeline, "  "+kind+" ") {
			t.Errorf("the timeline of %s lacks %s:\n%s", name, kind, timeline)
		}
	}
	return timeline
}

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
	d.setFaults(t, harness.Faults{ShopDown: true})
	d.payonce(t, "webhooks", "resend", d.recordsOf(t, during.ID).Notifications[0].WebhookID)
	await.Row(t, d.tables, `select exists (select from inbox where type = 'webhook.resend' and status = 'pending' and waits > 0)`)
	d.setFaults(t, harness.Faults{})
	d.mustBeDelivered(t, during.ID, 2)

	d.payonce(t, "webhooks", "resend", "--merchant", merchant, "--since", start.UTC().Format(time.RFC3339Nano))
	for id, times := range map[string]int{before.ID: 3, during.ID: 3, after.ID: 2, last.ID: 2} {
		d.mustBeDelivered(t, id, times)
	}
	timeline := d.mustShow(t, before.ID, "webhook")
	if strings.Count(timeline, "  resend wanted  ") != 2 || strings.Count(timeline, "  resent  ") != 2 {
		t.Errorf("the timeline does not show two resends:\n%s", timeline)
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
	var seen []harness.Notification
	if !await.Within(await.Stall, func() bool {
		seen = d.recordsOf(t, id).Notifications
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

// shopLearns gives the shop another secret; it knows no other from then on.
func (d *deployment) shopLearns(t *testing.T, secret string) {
	t.Helper()
	stop(t, d.Sandbox)
	d.Secrets.Shop = secret
	env := d.SandboxEnv("")
	env["HTTP_ADDR"] = strings.TrimPrefix(d.Sandbox.URL(), "http://")
	var err error
	d.Sandbox, err = d.Start(t.Context(), "sandbox", d.Binaries.Sandbox, env)
	must(t, err)
}
