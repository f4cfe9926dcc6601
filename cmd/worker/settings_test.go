package main

import (
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/await"
)

// remote is an address that is refused before anything is dialed.
const remote = "postgres://payonce:hunter2@db.example/payonce?sslmode=disable"

func TestSettings_refusesUnsafeValues(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, variable, value string }{
		{"no database", "DATABASE_URL", ""},
		{"a database over a network in plain text", "DATABASE_URL", remote},
		{"no key of the provider's", "STRIPE_SECRET_KEY", ""},
		{"a provider with a path", "STRIPE_API_BASE", "https://api.example/v1"},
		{"no concurrency", "WORKER_CONCURRENCY", "0"},
		{"more concurrency than the bound", "WORKER_CONCURRENCY", "10001"},
		{"a lease too short to be renewed", "LEASE", "99ms"},
		{"no attempt", "MAX_ATTEMPTS", "0"},
		{"giving up at once", "GIVE_UP_AFTER", "0s"},
		{"no pause between attempts", "BACKOFF_BASE", "0s"},
		{"a pause beyond its cap", "BACKOFF_CAP", "100ms"},
		{"an audit before the last one", "AUDIT_INTERVAL", "-1s"},
		{"an inbox that forgets at once", "INBOX_RETENTION", "0s"},
		{"a retention of an outbox that keeps nothing", "OUTBOX_RETENTION", "24h"},
		{"a retention of a quarantine that is not there", "QUARANTINE_RETENTION", "2160h"},
		{"too few connections", "DATABASE_CONNECTIONS", "0"},
		{"a network that is none", "WEBHOOK_ALLOW_CIDRS", "localhost"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			await.Refusal(t, run, environ(remote, test.variable, test.value), test.variable)
		})
	}
}

func TestSettings_arePrintedWithSecretsHidden(t *testing.T) {
	t.Parallel()
	log := await.Refusal(t, run, map[string]string{
		"DATABASE_URL": remote, "STRIPE_SECRET_KEY": "sk_test_hunter2",
		"STRIPE_API_BASE": "http://127.0.0.1:8090", "WEBHOOK_ALLOW_CIDRS": "127.0.0.0/8,10.0.0.0/8",
	}, "DATABASE_URL")
	for _, want := range []string{
		`"DATABASE_URL":"(hidden)"`, `"STRIPE_SECRET_KEY":"(hidden)"`, `"STRIPE_API_BASE":"http://127.0.0.1:8090"`,
		`"HTTP_ADDR":"127.0.0.1:8081"`, `"WORKER_CONCURRENCY":"256"`, `"LEASE":"3s"`, `"MAX_ATTEMPTS":"12"`,
		`"GIVE_UP_AFTER":"72h0m0s"`, `"BACKOFF_BASE":"200ms"`, `"BACKOFF_CAP":"1m0s"`, `"INBOX_RETENTION":"168h0m0s"`,
		`"WEBHOOK_ALLOW_CIDRS":"[127.0.0.0/8 10.0.0.0/8]"`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("%s is not printed:\n%s", want, log)
		}
	}
}

func TestSettings_aLiveKeyIsNotSentInPlainText(t *testing.T) {
	t.Parallel()
	await.Refusal(t, run, environ(remote, "STRIPE_SECRET_KEY", "sk_live_hunter2", "STRIPE_API_BASE", "http://api.example"), "set STRIPE_API_BASE to an https:// origin")
}
