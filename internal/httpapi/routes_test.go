package httpapi_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// route takes a key: a request to it that is accepted.
type route struct {
	name      string
	operation string
	path      string
	body      string
	adds      map[string]int64 // rows, when it is accepted
}

func (r route) under(key string) call { return to(r.path, key, r.body) }

// routes are all routes that take a key, on charges of their own.
func (w *world) routes(t *testing.T) []route {
	t.Helper()
	open := w.accept(t, "an-open-charge", body("order_id", `"open"`)).header.Get("Location")
	paid := w.captured(t, "a-captured-charge")
	return []route{
		{"a charge", "POST /v1/charges", "/v1/charges", body(), ofOneCharge()},
		{
			"a cancellation", "POST /v1/charges/:id/cancel", open + "/cancel", "{}",
			map[string]int64{"idempotency_keys": 1, "ledger_events": 1, "outbox": 1},
		},
		{"a refund", "POST /v1/charges/:id/refunds", paid + "/refunds", `{"amount":1}`, ofOneCharge()},
	}
}

// wantReplay compares everything that a replay repeats.
func wantReplay(t *testing.T, first, again answer) {
	t.Helper()
	if again.status != first.status || again.body != first.body {
		t.Errorf("not the first answer: %d %s, want %d %s", again.status, again.body, first.status, first.body)
	}
	for _, name := range []string{"Content-Type", "Location", "Idempotency-Key", "Idempotency-Expires"} {
		if got, want := again.header.Get(name), first.header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if first.header.Get("Idempotent-Replayed") != "" || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("Idempotent-Replayed is %q and then %q", first.header.Get("Idempotent-Replayed"), again.header.Get("Idempotent-Replayed"))
	}
}

// holdAt takes acme's key of an operation in a transaction that does not end.
func holdAt(t *testing.T, db *postgres.DB, operation, key string) pgx.Tx {
	t.Helper()
	tx := begin(t, db)
	exec(t, tx, `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
values ('acme', $1, $2, 'another', 202, 'application/json', '{}', clock_timestamp() + interval '1 hour')`, operation, key)
	return tx
}

// reads are all paths that are read, some of nothing.
func (w *world) reads(t *testing.T) map[string]string {
	t.Helper()
	charge := w.captured(t, "a-charge-to-read")
	refund := w.accepted(t, to(charge+"/refunds", "a-refund-to-read", `{"amount":1}`)).header.Get("Location")
	return map[string]string{
		"a charge":            charge,
		"its events":          charge + "/events",
		"its refunds":         charge + "/refunds",
		"a refund":            refund,
		"a key":               "/v1/idempotency-keys/a-charge-to-read",
		"the balances":        "/v1/balances",
		"the audit":           "/v1/audit",
		"the health":          "/healthz",
		"the readiness":       "/readyz",
		"no charge":           "/v1/charges/ch_unknown",
		"no charge's events":  "/v1/charges/ch_unknown/events",
		"no charge's refunds": "/v1/charges/ch_unknown/refunds",
		"no refund":           charge + "/refunds/re_unknown",
		"no key":              "/v1/idempotency-keys/unknown",
		"nothing":             "/v1/nothing",
	}
}

// like makes a read into a call of another method.
func (c call) like(method string) call {
	c.method = method
	return c
}
