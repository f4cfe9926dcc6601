package failpoint

import "testing"

func TestStatementName(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		"":                                     "ping",
		"-- ping":                              "ping",
		"begin isolation level read committed": "begin",
		"set role payonce_api":                 "set role",
		"insert into ledger_events\n (event_id) values ($1)":                        "insert ledger_events",
		"update stock\n set sold = sold + 1 from x":                                 "update stock",
		"update only stock set a = 1":                                               "update stock",
		"delete from inbox i using due":                                             "delete inbox",
		"select version from ledger_events where type = 'a from b'":                 "select version from ledger_events",
		"select set_config('a', 'from x', true)":                                    "select set_config",
		"select name from unnest($1::text[]) as s(name)":                            "select name",
		"select c.now from (select clock_timestamp() as now) as c left join keys k": "select now from keys",
		"select exists (select from events e where e.a > p.a) from projections p":   "select exists from projections",
		"select a is distinct from b from t":                                        "select a from t",
		"with due as (select id from inbox) update inbox i set a = 1 from due":      "due: update inbox",
		"with recursive ops as (select 1 from a) select op from ops":                "ops: select op from ops",
		"WITH position AS MATERIALIZED (select 1) SELECT x FROM outbox o":           "position: select x from outbox",
		"with a as (insert into x values (1) returning id) insert into y select 1":  "a: insert y",
		"/* from nowhere */ select \"offset\" from \"outbox\" -- from elsewhere":    "select offset from outbox",
	} {
		if got := statementName(sql); got != want {
			t.Errorf("%q is named %q, want %q", sql, got, want)
		}
	}
}

func TestBatchName(t *testing.T) {
	t.Parallel()
	if got, want := batchName([]string{"a", "b", "b", "b", "a"}), "a, b ×3, a"; got != want {
		t.Errorf("named %q, want %q", got, want)
	}
}

func TestRequestName(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/v1/payment_intents":                "POST /v1/payment_intents",
		"/v1/payment_intents/pi_3Mt/confirm": "POST /v1/payment_intents/:id/confirm",
		"/shop/webhooks":                     "POST /shop/webhooks",
	} {
		if got := requestName("POST", path); got != want {
			t.Errorf("%s is named %q, want %q", path, got, want)
		}
	}
}
