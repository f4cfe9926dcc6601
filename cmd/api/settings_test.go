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
		{"a database over a network in plain text", "DATABASE_URL", remote},
		{"a database over a network that TLS does not verify", "DATABASE_URL", "postgres://payonce:hunter2@db.example/payonce?sslmode=require"},
		{"an unknown answer in flight", "IN_FLIGHT", "503"},
		{"no wait in flight", "IN_FLIGHT_WAIT", "0s"},
		{"a wait that outlives the request", "IN_FLIGHT_WAIT", "11s"},
		{"no retention", "IDEMPOTENCY_RETENTION", "0s"},
		{"a negative limit of rates", "RATE_LIMIT", "-1"},
		{"a negative limit of failures", "AUTHENTICATION_FAILURES", "-1"},
		{"too few connections", "DATABASE_CONNECTIONS", "4"},
		{"a check of card numbers, neither on nor off", "CARD_NUMBER_CHECK", "false"},
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
		"DATABASE_URL": remote, "IN_FLIGHT": "425",
		"STRIPE_WEBHOOK_SECRET": "whsec_hunter2",
	}, "DATABASE_URL")
	for _, want := range []string{
		`"DATABASE_URL":"(hidden)"`, `"HTTP_ADDR":"127.0.0.1:8080"`, `"IDEMPOTENCY_RETENTION":"168h0m0s"`,
		`"IN_FLIGHT":"425"`, `"IN_FLIGHT_WAIT":"250ms"`, `"ALLOW_PLAINTEXT":"false"`,
		`"RATE_LIMIT":"0"`, `"CARD_NUMBER_CHECK":"on"`, `"STRIPE_WEBHOOK_SECRET":"(hidden)"`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("%s is not printed:\n%s", want, log)
		}
	}
}

func TestRun_needsADatabase(t *testing.T) {
	t.Parallel()
	await.Refusal(t, run, nil, "DATABASE_URL is not set")
}
