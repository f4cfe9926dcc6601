package main

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestActions_areRecordedWithTheirActor carries out each action of operators, through the
// session that the command line opens. Repeated commands that change nothing leave no row.
func TestActions_areRecordedWithTheirActor(t *testing.T) {
	t.Parallel()
	db := opened(t, testdb.URL(t), postgres.Options{})
	seed := seedCmd{
		Merchant: "acme", APIKey: "sk_test_demo", WebhookURL: "https://shop.example/planted?token=planted",
		WebhookSecret: "whsec_cGxhbnRlZCBwbGFudGVkIHBsYW50ZWQh",
	}
	mustExecute(t, db, seed)
	mustExecute(t, db, seed)
	key := strings.TrimSpace(mustExecute(t, db, createKeyCmd{Merchant: "acme", Scopes: []string{"charges:read"}}))
	for range 2 {
		mustExecute(t, db, revokeKeyCmd{Prefix: key})
	}
	mustExecute(t, db, webhooksRotateCmd{Merchant: "acme", Overlap: overlap})
	retried, discarded := put(t, db, "ch_1", "dead", "{}"), put(t, db, "ch_2", "dead", "{}")
	mustExecute(t, db, inboxRetryCmd{IDs: []int64{retried}})
	mustExecute(t, db, inboxDiscardCmd{inboxRetryCmd{IDs: []int64{discarded}}})
	mustExecute(t, db, outboxRepairCmd{Force: true})

	actions := dataOf[audit.Action](t, mustExecute(t, db, actionsCmd{Limit: 100, JSON: true}))
	slices.Reverse(actions)
	got := make([]string, len(actions))
	for i, a := range actions {
		if a.Actor != operator() || a.Login == "" || a.At.IsZero() {
			t.Errorf("%s is by %q (%q) at %s", a.Action, a.Actor, a.Login, a.At)
		}
		got[i] = a.Action + " " + a.Subject
		if strings.Contains(string(a.Before)+string(a.After), "planted") || strings.Contains(string(a.After), "cGxhbnRlZ") {
			t.Errorf("%s shows a token: %s %s", a.Action, a.Before, a.After)
		}
	}
	want := []string{
		"merchant set acme", "webhook secret create 1", "key create " + merchants.Prefix("sk_test_demo"),
		"key create " + merchants.Prefix(key), "key revoke " + merchants.Prefix(key),
		"webhook secret create 2", "merchant set acme", "webhook secret end 1",
		"inbox retry " + strconv.FormatInt(retried, 10), "inbox discard " + strconv.FormatInt(discarded, 10),
	}
	sorted := func(lines []string) []string { return slices.Sorted(slices.Values(lines)) }
	testrun.Same(t, "actions", sorted(want), sorted(got[:len(got)-1]))
	if last := got[len(got)-1]; !strings.HasPrefix(last, "outbox repair ") {
		t.Errorf("the last action is %s", last)
	}
	for _, a := range actions {
		if a.Action == "inbox retry" && (!strings.Contains(string(a.Before), `"status": "dead"`) || !strings.Contains(string(a.After), `"status": "pending"`)) {
			t.Errorf("the retry went from %s to %s", a.Before, a.After)
		}
	}
	if text := mustExecute(t, db, actionsCmd{Merchant: "acme", Limit: 2}); strings.Count(text, "\n") != 3 || !strings.Contains(text, operator()) {
		t.Errorf("the list for people is\n%s", text)
	}
}

// TestActions_areRecordedForAnySession: a session that names no actor is recorded by its
// database user, and of long texts the beginning.
func TestActions_areRecordedForAnySession(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	testdb.Exec(t, db.Pool(), `insert into merchants (merchant_id) values ('acme')`)
	got := testdb.All[string](t, db, `select concat_ws(' ', action, actor = session_user, login = session_user, subject) from operator_actions`)
	testrun.Same(t, "actions", []string{"merchant set t t acme"}, got)
	testdb.Exec(t, db.Pool(), `
do $$ begin
  perform set_config('payonce.actor', repeat('a', 5000), true), set_config('payonce.reason', repeat('r', 5000), true);
  insert into merchants (merchant_id) values ('globex');
end $$`)
	if long := testdb.One[string](t, db, `select length(actor) || ' ' || length(after ->> 'reason') from operator_actions order by action_id desc limit 1`); long != "255 2000" {
		t.Errorf("of long texts the audit log keeps %s characters", long)
	}
}
