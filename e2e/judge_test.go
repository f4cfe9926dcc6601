package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/audit"
)

// end judges a world and closes it.
func (w *world) end(t *testing.T) {
	t.Helper()
	if w.client != nil && !t.Failed() {
		if w.setup.workers > 0 {
			w.mendOutside(t)
			if w.gates != nil {
				w.gates.open()
			}
			w.calm(t)
			w.accounts(t)
		}
		w.separate(t)
		w.allAccepted(t)
		w.audit(t)
	}
	for _, p := range w.processes() {
		stop(t, p)
		if t.Failed() {
			t.Logf("the end of %s:\n%s", p.Name(), p.Tail())
		}
	}
	w.discreet(t)
	w.contracted(t)
}

// calm waits until nothing is left to be done.
func (w *world) calm(t *testing.T) {
	t.Helper()
	const open = `
with wanted as (
  select stream_id,
         data ->> 'refund_id' as refund
    from ledger_events
   where type in ('charge.requested.v1', 'refund.requested.v1')
), told as (
  select t.stream_id,
         o.data ->> 'refund_id' as refund
    from ledger_events t
    join ledger_events o
      on o.event_id::text = t.data ->> 'event_id'
   where t.type = 'merchant.notified.v1'
)
select (select count(*)
          from inbox
         where status not in ('done', 'discarded'))
     + (select count(*)
          from wanted w
         where not exists (
                 select
                   from told t
                  where t.stream_id = w.stream_id
                    and t.refund is not distinct from w.refund))`
	var left int64
	if !within(endPatience, func() bool {
		left = row[int64](t, w, open)
		return left == 0
	}) {
		const stuck = `
select concat_ws(' ', ordering_key, receiver, status, 'attempts', attempts, 'waits', waits, last_error)
  from inbox
 where status not in ('done', 'discarded')
 limit 5`
		t.Errorf("%d things are still to be done after %s, for example %q", left, endPatience, rows[string](t, w, stuck))
	}
}

// allAccepted compares what clients were told with what is there: each accepted
// key has one charge or refund, and there is none besides.
func (w *world) allAccepted(t *testing.T) {
	t.Helper()
	const accepted = `
select coalesce(data ->> 'refund_id', stream_id)
  from ledger_events
 where type in ('charge.requested.v1', 'refund.requested.v1')
 order by 1`
	told := []string{}
	for key, answer := range w.client.accepted {
		var c charge
		if err := json.Unmarshal(answer.Body, &c); err != nil {
			t.Errorf("key %s was answered %s", key, answer.Body)
		}
		told = append(told, c.ID)
	}
	slices.Sort(told)
	told = slices.Compact(told) // a cancellation is answered with its charge
	if diff := cmp.Diff(told, rows[string](t, w, accepted)); diff != "" {
		t.Errorf("charges and refunds that clients were told of (-) and that there are (+):\n%s", diff)
	}
}

// accounts compares the books of the sandbox with the ledger, by the audit's list.
func (w *world) accounts(t *testing.T) {
	t.Helper()
	var books audit.Books
	w.control(t, http.MethodGet, "/books", nil, &books)
	checks, err := audit.CompareBooks(context.WithoutCancel(t.Context()), w.tables, books)
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
	if n := row[int64](t, w, held); n != 0 {
		t.Errorf("%d articles do not add up, or are still held", n)
	}
}

// audit asks the product itself.
func (w *world) audit(t *testing.T) {
	t.Helper()
	out, err := w.run(t, "audit", "--json")
	var report struct {
		OK     bool `json:"ok"`
		Checks []struct {
			Name     string   `json:"name"`
			Checked  int64    `json:"checked"`
			Violated int64    `json:"violated"`
			Examples []string `json:"examples"`
		} `json:"checks"`
	}
	if jsonErr := json.Unmarshal(out, &report); jsonErr != nil {
		t.Errorf("audit printed %q: %v, %v", out, jsonErr, err)
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

func (w *world) stdout(name string) string { return filepath.Join(w.log, name+".stdout") }

// discreet reads all that the programs printed: nothing on stdout, JSON lines
// on stderr, no secret and no raw idempotency key anywhere.
func (w *world) discreet(t *testing.T) {
	t.Helper()
	secrets := []string{w.keys.api, w.keys.neighbour, w.keys.provider, w.keys.shop, w.keys.events, strings.TrimPrefix(w.keys.shop, "whsec_")}
	if password, _ := w.server.at.User.Password(); len(password) > 3 {
		secrets = append(secrets, password)
	}
	if w.client != nil {
		secrets = append(secrets, w.client.keys...)
	}
	for _, p := range w.processes() {
		if out, err := os.ReadFile(w.stdout(p.Name())); err != nil || len(out) > 0 {
			t.Errorf("%s printed on stdout: %q, %v", p.Name(), out, err)
		}
		log, err := os.ReadFile(filepath.Join(w.log, p.Name()+".log"))
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
