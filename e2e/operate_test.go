package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/traffic"
)

// deadLetter is what operators see of a message.
type deadLetter struct {
	ID          int64  `json:"id"`
	Receiver    string `json:"receiver"`
	Type        string `json:"type"`
	OrderingKey string `json:"ordering_key"`
	Status      string `json:"status"`
	LastError   string `json:"last_error"`
	DecidedBy   string `json:"decided_by"`
	Behind      int    `json:"behind"`
}

// TestInbox_deadLetters_areRetriedOrDiscarded makes dead letters of two charges' messages: the provider is
// unavailable for too long. An operator retries one of them. The other charge is
// canceled, which its dead letter does not block, and the operator discards the
// dead letter.
func TestInbox_deadLetters_areRetriedOrDiscarded(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 1, oneMerchant: true, workerEnv: map[string]string{"GIVE_UP_AFTER": "300ms"}})
	d.setFaults(t, traffic.Faults{DropBefore: 1})
	key := "key-" + unique()
	retried := acceptedCharge(t, d.insist(t, request{key: key, body: newOrder(visa).body(t)}))
	discarded := d.send(t, newOrder(visa))
	dead := d.awaitDeadLetters(t, retried.ID, discarded.ID)
	mustFindAudit(t, d, "no message is stuck")

	number := strconv.FormatInt(dead[retried.ID].ID, 10)
	one := d.payonce(t, "inbox", "show", number)
	for _, want := range []string{"dead", retried.ID, "waiting", `"charge_id"`} {
		if !strings.Contains(string(one), want) {
			t.Errorf("show does not show %q:\n%s", want, one)
		}
	}
	d.setFaults(t, traffic.Faults{})

	d.payonce(t, "inbox", "retry", number)
	d.mustEnd(t, retried.ID, "succeeded")

	if got := d.cancel(t, discarded.ID); got.Status != http.StatusAccepted {
		t.Fatalf("answered %d %s", got.Status, got.Body)
	}
	d.mustEnd(t, discarded.ID, "canceled")
	decision := request{path: fmt.Sprintf("/v1/inbox/%d/discard", dead[discarded.ID].ID)}
	got := d.do(t, decision)
	var message deadLetter
	if got.Status != http.StatusOK || json.Unmarshal(got.Body, &message) != nil ||
		message.Status != "discarded" || !strings.HasPrefix(message.DecidedBy, "api:sk_test_") {
		t.Errorf("discarded: %d %s", got.Status, got.Body)
	}
	mustBeProblem(t, d.do(t, decision), http.StatusConflict, "conflict")
	d.drain(t)
	if left := d.deadLetters(t); len(left) != 0 {
		t.Errorf("dead letters are left: %v", left)
	}
	if out := d.payonce(t, "audit", "--quiet"); len(out) != 0 {
		t.Errorf("a quiet audit prints %q", out)
	}

	for _, name := range []string{retried.ID, key} {
		d.mustShow(t, name, "key", "event", "outbox", "inbox", "webhook", "provider")
	}
	d.mustShow(t, discarded.ID, "key", "event", "outbox", "inbox", "webhook")
}

// awaitDeadLetters waits until each of these charges has a dead letter, and checks
// that the API and the tool list the same ones.
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

// deadLetters are the dead letters by their charges, as the API and the tool list them.
func (d *deployment) deadLetters(t *testing.T) map[string]deadLetter {
	t.Helper()
	var lists [2]struct {
		Data []deadLetter `json:"data"`
	}
	d.get(t, "/v1/inbox?status=dead", &lists[0])
	if err := json.Unmarshal(d.payonce(t, "inbox", "list", "--json"), &lists[1]); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(lists[0].Data, lists[1].Data, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("dead letters, by the API (-) and by the tool (+):\n%s", diff)
	}
	messages := map[string]deadLetter{}
	for _, m := range lists[0].Data {
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
