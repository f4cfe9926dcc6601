package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// end checks every invariant of a deployment and stops it.
func (d *deployment) end(t *testing.T) {
	t.Helper()
	if d.client != nil && !t.Failed() {
		d.drain(t)
		d.checkAcceptedKeys(t)
		violations, err := d.verdict(bounded(t))
		if err != nil {
			t.Error(err)
		}
		for _, violation := range violations {
			t.Error(violation)
		}
	}
	d.explain(t)
	for _, p := range d.Processes() {
		stop(t, p)
		if t.Failed() {
			t.Logf("the end of %s:\n%s", p.Name(), p.Tail())
		}
	}
	d.checkLogs(t)
}

// drain waits until every message is done and every outcome is notified.
func (d *deployment) drain(t *testing.T) {
	t.Helper()
	must(t, d.quiet(context.WithoutCancel(t.Context()), testrun.Stall))
}

// explain logs what a failed test leaves: the timelines of charges, those first that
// have not ended.
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
	for _, id := range rows[string](t, d.tables, charges) {
		timeline, err := d.Run(bounded(t), "timeline", id)
		t.Logf("payonce timeline %s: %v\n%s", id, err, timeline)
	}
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
	testrun.Same(t, "charges and refunds of the ledger, with those that answers named as wanted", answered, rows[string](t, d.tables, accepted))
}

// verdict are the violations of what holds when all is quiet, as seen from outside: by
// `payonce audit`, which asks the provider too, and by the records of the provider and
// the shop.
func (w *world) verdict(ctx context.Context) (violations []string, err error) {
	report, err := w.Audit(ctx)
	if err != nil {
		return nil, err
	}
	reconciled := false
	for _, c := range report.Checks {
		reconciled = reconciled || strings.HasPrefix(c.Name, "provider: ")
		if c.Violated > 0 {
			violations = append(violations, fmt.Sprintf("%s: %d of %d, %q", c.Name, c.Violated, c.Checked, c.Examples))
		}
	}
	if !reconciled {
		violations = append(violations, "audit: it was not reconciled with the provider")
	}
	wrong, err := w.wrongWebhooks(ctx)
	return append(violations, wrong...), err
}

// wrongWebhooks compares the webhooks that the shop has received with the events that say so. The
// audit compares these events with the outcomes, and the provider's lists with the money.
func (w *world) wrongWebhooks(ctx context.Context) (wrong []string, err error) {
	const notified = `
select n.data ->> 'event_id' as webhook_id,
       coalesce(o.data ->> 'refund_id', o.data ->> 'dispute_id', o.stream_id) as reference,
       n.data ->> 'type'     as type,
       1                     as deliveries,
       1                     as effects
  from ledger_events n
  join ledger_events o
    on o.stream_id = n.stream_id
   and o.event_id::text = n.data ->> 'event_id'
 where n.type like 'merchant.notified.v%'`
	rows, _ := w.tables.Query(ctx, notified) // CollectRows returns its error
	due, err := pgx.CollectRows(rows, pgx.RowToStructByName[harness.Notification])
	if err != nil {
		return nil, err
	}
	books, err := w.sandbox().Books(ctx)
	for i := range books.Notifications {
		books.Notifications[i].Deliveries = 1 // or more
	}
	order := cmpopts.SortSlices(func(a, b harness.Notification) bool { return a.WebhookID < b.WebhookID })
	if diff := gocmp.Diff(due, books.Notifications, order, cmpopts.EquateEmpty()); diff != "" {
		wrong = append(wrong, "every outcome reached the merchant, and took effect there once (-ledger +shop):\n"+diff)
	}
	return wrong, err
}

// checkLogs reads the output of the programs: nothing on stdout, JSON lines on
// stderr, no secret and no idempotency key anywhere.
func (d *deployment) checkLogs(t *testing.T) {
	t.Helper()
	secrets := []string{d.Secrets.API, d.Secrets.Provider, d.Secrets.Shop, d.Secrets.Events, strings.TrimPrefix(d.Secrets.Shop, "whsec_")}
	if password, _ := d.server.at.User.Password(); len(password) > 3 {
		secrets = append(secrets, password)
	}
	if d.client != nil {
		secrets = append(secrets, d.client.keys...)
	}
	pairs := []string{}
	for _, secret := range secrets {
		pairs = append(pairs, secret, "(secret)")
	}
	hide := strings.NewReplacer(pairs...) // one reading of a log, however many secrets there are
	for _, p := range d.Processes() {
		if out, err := os.ReadFile(filepath.Join(d.Log, p.Name()+".stdout")); err != nil || len(out) > 0 {
			t.Errorf("%s printed on stdout: %q, %v", p.Name(), out, err)
		}
		log := d.log(t, p.Name())
		if _, report, found := bytes.Cut(log, []byte("WARNING: DATA RACE\n")); found {
			report, _, _ = bytes.Cut(report, []byte("\n=================="))
			t.Errorf("%s has a data race:\n%s", p.Name(), report)
			continue // a report is no JSON
		}
		for line := range bytes.Lines(log) {
			if hidden := hide.Replace(string(line)); hidden != string(line) {
				t.Errorf("%s logs secrets: %s", p.Name(), hidden)
			}
			var e struct{ Time, Level, Msg, Program string }
			if err := json.Unmarshal(line, &e); err != nil || e.Time == "" || e.Level == "" || e.Msg == "" || e.Program == "" {
				t.Errorf("%s logs %q, which is no JSON, or lacks time, level, message or program: %v", p.Name(), line, err)
			}
		}
	}
}

// log is what a program has logged so far.
func (d *deployment) log(t *testing.T, program string) []byte {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(d.Log, program+".log"))
	if err != nil || len(log) == 0 {
		t.Errorf("%s has no log: %v", program, err)
	}
	return log
}

// sandbox is the sandbox's own API, which the service does not use.
func (w *world) sandbox() harness.Sandbox { return harness.Sandbox(w.Sandbox.URL()) }

// captures counts those of each charge, by the reference that the provider has of it.
func captures(b harness.Books) map[string]int {
	n := map[string]int{}
	for _, c := range b.Captures {
		n[cmp.Or(c.ChargeReference, c.Reference)]++
	}
	return n
}

// walkStall is how long nothing may change while work is left. The lease, the
// longest backoff and the start of a program fit into it many times.
const walkStall = time.Minute

// undone has how much is left to do, what changes with everything that brings work closer to its
// end, and what is left. A message that waits forever makes no progress: its waits are not counted,
// its attempts are bounded.
const undone = `
with undone (what) as (
  select concat_ws(' ', receiver, type, status, 'attempts', attempts, 'deaths', deaths, 'waits', waits,
                   'due in', date_trunc('milliseconds', due_at - clock_timestamp()), last_error)
    from inbox
   where status not in ('done', 'discarded')
   union all
  select 'unread in the outbox'
    from outbox
   union all
  select concat_ws(' ', 'not notified of', wanted.stream_id, wanted.data ->> 'refund_id')
    from ledger_events wanted
   where type in ('charge.requested.v1', 'refund.requested.v1')
     and not exists (
           select
             from ledger_events n
             join ledger_events o
               on o.stream_id = n.stream_id
              and o.event_id::text = n.data ->> 'event_id'
            where n.stream_id = wanted.stream_id
              and n.type = 'merchant.notified.v1'
              and o.data ->> 'refund_id' is not distinct from wanted.data ->> 'refund_id')
   union all
  select concat('not in the balances, which wait for transactions of ',
                (select string_agg(concat_ws(' ', application_name, state, left(query, 200)), ', ') from pg_stat_activity where backend_xid is not null))
    from followers f
   where name = 'balances'
     and exists (select from ledger_events e where (e.txid, e.position) > (f.txid, f.position))
)
select (select count(*) from undone),
       concat_ws(' ', (select count(*) from ledger_events), (select count(*) from outbox),
                 (select sum(attempts) from inbox), (select count(*) from inbox where status in ('done', 'discarded')),
                 (select string_agg(concat_ws(' ', txid, position), ' ' order by name) from followers)),
       (select concat(string_agg(what, '; ')) from undone)`

var errNotQuiet = errors.New("work is left")

// quiet waits until nothing is left to be done, and gives up when nothing has
// changed for stall. It waits for a server that restarts.
func (w *world) quiet(ctx context.Context, stall time.Duration) error {
	var left int64
	var what string
	var err error
	if _, done := testrun.Changing(stall, func() (seen string, done bool) {
		err = cmp.Or(w.tables.QueryRow(ctx, undone).Scan(&left, &seen, &what), ctx.Err())
		return seen, err == nil && left == 0 || ctx.Err() != nil
	}); !done {
		return errors.Join(fmt.Errorf("%w, and nothing changed for %s: %s", errNotQuiet, stall, what), err)
	}
	return err
}
