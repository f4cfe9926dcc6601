package api_test

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/app/api"
	"github.com/payonce/payonce/internal/program"
)

// unset unsets the program's variables, until the test ends.
func unset(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"DATABASE_URL", "HTTP_ADDR", "ALLOW_PLAINTEXT", "IDEMPOTENCY_RETENTION", "IDEMPOTENCY_KEY_MODE",
		"IN_FLIGHT", "IN_FLIGHT_WAIT", "REDIS_URL", "STRIPE_WEBHOOK_SECRET", "RATE_LIMIT", "CORS_ORIGINS",
	} {
		t.Setenv(name, "")
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
}

// remote is an address that is refused before anything is dialed.
const remote = "postgres://payonce:hunter2@db.example/payonce?sslmode=disable"

func TestUnsafeSettingsAreRefused(t *testing.T) {
	unset(t)
	t.Setenv("DATABASE_URL", remote)
	for _, test := range []struct{ name, variable, value string }{
		{"no database", "DATABASE_URL", ""},
		{"a database that is no address", "DATABASE_URL", "postgres://payonce:hunter2@127.0.0.1:port/payonce"},
		{"a database over a network in plain text", "DATABASE_URL", remote},
		{"a database over a network, perhaps in plain text", "DATABASE_URL", "postgres://payonce:hunter2@db.example/payonce?sslmode=prefer"},
		{"an unknown answer in flight", "IN_FLIGHT", "503"},
		{"two answers in flight", "IN_FLIGHT", "wait|409"},
		{"no wait in flight", "IN_FLIGHT_WAIT", "0s"},
		{"a negative wait in flight", "IN_FLIGHT_WAIT", "-1s"},
		{"a wait that outlives the request", "IN_FLIGHT_WAIT", "11s"},
		{"a wait without a unit", "IN_FLIGHT_WAIT", "250"},
		{"no retention", "IDEMPOTENCY_RETENTION", "0s"},
		{"a negative retention", "IDEMPOTENCY_RETENTION", "-168h"},
		{"a retention in days", "IDEMPOTENCY_RETENTION", "7d"},
		{"a negative limit of rates", "RATE_LIMIT", "-1"},
		{"a limit of rates that is no number", "RATE_LIMIT", "10/s"},
		{"pages of any origin", "CORS_ORIGINS", "*"},
		{"pages of any origin among others", "CORS_ORIGINS", "https://shop.example, *"},
		{"pages of a pattern of origins", "CORS_ORIGINS", "https://*.shop.example"},
		{"pages of no origin", "CORS_ORIGINS", "null"},
		{"an origin without a scheme", "CORS_ORIGINS", "shop.example"},
		{"an origin of another scheme", "CORS_ORIGINS", "ftp://shop.example"},
		{"an origin that ends in a slash", "CORS_ORIGINS", "https://shop.example/"},
		{"an origin with a path", "CORS_ORIGINS", "https://shop.example/cart"},
		{"an origin with a query", "CORS_ORIGINS", "https://shop.example?a=1"},
		{"an origin with a user", "CORS_ORIGINS", "https://me@shop.example"},
		{"an origin in another case", "CORS_ORIGINS", "https://Shop.example"},
		{"an origin with the port that goes without saying", "CORS_ORIGINS", "https://shop.example:443"},
		{"an origin with a port that is none", "CORS_ORIGINS", "https://shop.example:http"},
		{"an origin with half a port", "CORS_ORIGINS", "https://shop.example:"},
		{"an origin over a network in plain text", "CORS_ORIGINS", "http://shop.example"},
		{"two origins without a comma", "CORS_ORIGINS", "https://shop.example https://mug.example"},
		{"an unknown key mode", "IDEMPOTENCY_KEY_MODE", "optional"},
		{"plain text, perhaps", "ALLOW_PLAINTEXT", "perhaps"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(test.variable, test.value)
			var log bytes.Buffer
			err := api.Run(t.Context(), program.Logger(&log, "api"), time.Now)
			if err == nil || !strings.Contains(err.Error(), test.variable) {
				t.Errorf("the refusal does not name %s: %v", test.variable, err)
			}
			if err != nil && strings.Contains(err.Error()+log.String(), "hunter2") {
				t.Errorf("the password is shown: %v\n%s", err, &log)
			}
		})
	}
}

func TestSettingsArePrintedWithSecretsHidden(t *testing.T) {
	unset(t)
	t.Setenv("DATABASE_URL", remote)
	t.Setenv("IN_FLIGHT", "425")
	t.Setenv("REDIS_URL", "redis://payonce:hunter2@127.0.0.1")
	t.Setenv("STRIPE_WEBHOOK_SECRET", "whsec_hunter2")
	var log bytes.Buffer
	if err := api.Run(t.Context(), program.Logger(&log, "api"), time.Now); err == nil {
		t.Error("it runs")
	}
	for _, want := range []string{
		`"DATABASE_URL":"(hidden)"`, `"HTTP_ADDR":"127.0.0.1:8080"`, `"IDEMPOTENCY_RETENTION":"168h0m0s"`,
		`"IDEMPOTENCY_KEY_MODE":"required"`, `"IN_FLIGHT":"425"`, `"IN_FLIGHT_WAIT":"250ms"`, `"ALLOW_PLAINTEXT":"false"`,
		`"REDIS_URL":"(hidden)"`, `"STRIPE_WEBHOOK_SECRET":"(hidden)"`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not printed:\n%s", want, &log)
		}
	}
}

func TestADatabaseIsNeeded(t *testing.T) {
	unset(t)
	t.Setenv("HTTP_ADDR", "127.0.0.1:0")
	err := api.Run(t.Context(), program.Logger(io.Discard, "api"), time.Now)
	if err == nil || !strings.HasPrefix(err.Error(), "DATABASE_URL is not set") {
		t.Errorf("Run: %v", err)
	}
}
