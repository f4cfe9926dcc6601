package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/validate"
)

// end checks every invariant of a deployment and stops it.
func (d *deployment) end(t *testing.T) {
	t.Helper()
	if d.client != nil && !t.Failed() {
		if d.workers > 0 {
			d.clearFaults(t)
			if d.gates != nil {
				d.gates.open()
			}
			d.drain(t)
			d.checkProviderRecords(t)
		}
		d.checkTenants(t)
		d.checkAcceptedKeys(t)
		d.checkAudit(t)
	}
	d.explain(t)
	for _, p := range d.Processes() {
		stop(t, p)
		if t.Failed() {
			t.Logf("the end of %s:\n%s", p.Name(), p.Tail())
		}
	}
	d.checkLogs(t)
	d.checkContract(t)
}

// drain waits until every message is done and every outcome is notified.
func (d *deployment) drain(t *testing.T) {
	t.Helper()
	await.Progress(t, "every message is done and every outcome notified", func() (string, bool) {
		left := row[int64](t, d, undone)
		if left == 0 {
			return "", true
		}
		return fmt.Sprintf("%d left: %s", left, row[string](t, d, stuck)), false
	})
}

// explain logs what a failed test leaves: the timelines of charges, those first that
// have not ended, and the command that repeats the test.
func (d *deployment) explain(t *testing.T) {
	t.Helper()
	if !t.Failed() || len(d.Processes()) == 0 {
		return
	}
	const charges = `
select r.stream_id
  from ledger_events r
 where r.type = 'charge.requested.v1'
 order by exists (
            select
              from ledger_events n
             where n.stream_id = r.stream_id
               and n.type = 'merchant.notified.v1'), r.position desc
 limit 2`
	for _, id := range rows[string](t, d, charges) {
		timeline, err := d.run(t, "timeline", id)
		t.Logf("payonce timeline %s: %v\n%s", id, err, timeline)
	}
	t.Logf("repeat: %s", repeatCommand(t))
}

// checkAcceptedKeys compares the answers with the ledger: each accepted key has one
// charge or refund, and there are no others.
func (d *deployment) checkAcceptedKeys(t *testing.T) {
	t.Helper()
	const accepted = `
select coalesce(data ->> 'refund_id', stream_id)
  from ledger_events
 where type in ('charge.requested.v1', 'refund.requested.v1')
 order by 1`
	answered := []string{}
	for key, answer := range d.client.accepted {
		var c charge
		if err := json.Unmarshal(answer.Body, &c); err != nil {
			t.Errorf("key %s was answered %s", key, answer.Body)
		}
		answered = append(answered, c.ID)
	}
	slices.Sort(answered)
	answered = slices.Compact(answered) // a cancellation is answered with its charge
	if diff := cmp.Diff(answered, rows[string](t, d, accepted)); diff != "" {
		t.Errorf("charges and refunds that answers named (-) and the ledger has (+):\n%s", diff)
	}
}

// checkProviderRecords compares the records of the provider and the shop with the
// ledger, by the checks of the audit.
func (d *deployment) checkProviderRecords(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), await.Stall)
	defer cancel()
	var books audit.Books
	if err := readJSON(ctx, d.Sandbox.URL()+"/books", d.Secrets.Provider, &books); err != nil {
		t.Fatal(err)
	}
	checks, err := audit.CompareBooks(ctx, d.tables, books)
	if err != nil {
		t.Error(err)
	}
	for _, c := range checks {
		if c.Violated > 0 {
			t.Errorf("%s: %d of %d violated: %q", c.Name, c.Violated, c.Checked, c.Examples)
		}
	}
	const held = `
select count(*)
  from stock
 where available + reserved + sold <> supplied
    or reserved <> 0`
	if n := row[int64](t, d, held); n != 0 {
		t.Errorf("%d articles do not add up, or are still held", n)
	}
}

// checkAudit runs `payonce audit`.
func (d *deployment) checkAudit(t *testing.T) {
	t.Helper()
	out, err := d.run(t, "audit", "--json")
	report, unreadable := validate.ReadAudit(out)
	if unreadable != nil {
		t.Errorf("audit printed %q: %v, %v", out, unreadable, err)
		return
	}
	reconciled := false
	for _, c := range report.Checks {
		reconciled = reconciled || strings.HasPrefix(c.Name, "provider: ")
		if c.Violated > 0 {
			t.Errorf("audit: %s: %d of %d violated: %q", c.Name, c.Violated, c.Checked, c.Examples)
		}
	}
	if err != nil || !report.OK || !reconciled {
		t.Errorf("audit: ok is %v, reconciled with the provider is %v, ended with %v", report.OK, reconciled, err)
	}
}

// checkLogs reads the output of the programs: nothing on stdout, JSON lines on
// stderr, no secret and no idempotency key anywhere.
func (d *deployment) checkLogs(t *testing.T) {
	t.Helper()
	_, neighbourKey := processSecrets()
	secrets := []string{d.Secrets.API, neighbourKey, d.Secrets.Provider, d.Secrets.Shop, d.Secrets.Events, strings.TrimPrefix(d.Secrets.Shop, "whsec_")}
	if password, _ := d.server.at.User.Password(); len(password) > 3 {
		secrets = append(secrets, password)
	}
	if d.client != nil {
		secrets = append(secrets, d.client.keys...)
	}
	for _, p := range d.Processes() {
		if out, err := os.ReadFile(filepath.Join(d.Log, p.Name()+".stdout")); err != nil || len(out) > 0 {
			t.Errorf("%s printed on stdout: %q, %v", p.Name(), out, err)
		}
		log, err := os.ReadFile(filepath.Join(d.Log, p.Name()+".log"))
		if err != nil || len(log) == 0 {
			t.Errorf("%s has no log: %v", p.Name(), err)
		}
		for _, secret := range secrets {
			if line := lineWith(log, secret); line != nil {
				t.Errorf("%s logs %q: %s", p.Name(), secret, line)
			}
		}
		for line := range bytes.Lines(log) {
			mustBeLog(t, p.Name(), line)
		}
	}
}

func lineWith(log []byte, word string) []byte {
	if !bytes.Contains(log, []byte(word)) {
		return nil
	}
	for line := range bytes.Lines(log) {
		if bytes.Contains(line, []byte(word)) {
			return line
		}
	}
	return nil
}

// logEntry is a line of a log.
type logEntry struct {
	Time      string `json:"time"`
	Level     string `json:"level"`
	Message   string `json:"msg"`
	Program   string `json:"program"`
	MessageID string `json:"message_id"`
}

func mustBeLog(t *testing.T, name string, line []byte) logEntry {
	t.Helper()
	var e logEntry
	if err := json.Unmarshal(line, &e); err != nil {
		t.Errorf("%s logs %q, which is no JSON: %v", name, line, err)
	} else if e.Time == "" || e.Level == "" || e.Message == "" || e.Program == "" {
		t.Errorf("%s logs %q, which lacks time, level, message or program", name, line)
	}
	return e
}
