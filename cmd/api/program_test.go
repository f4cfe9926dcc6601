package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/arch"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

const (
	apiKey = "sk_test_of_acme"
	charge = `{"order_id":"order-1","amount":2000,"currency":"USD","payment_method":"pm_card_visa"}`
)

// database is a migrated database with one merchant, on a server that an api accepts.
func database(t *testing.T) (*postgres.DB, *local.Server) {
	t.Helper()
	server := testdb.Server(t, local.Options{Fsync: true, InMemory: true})
	db := testdb.Connect(t, testdb.Migrated(t, server, "service"))
	b := &pgx.Batch{}
	merchants.Register(b, merchants.Merchant{ID: "acme"}, merchants.Webhook{})
	merchants.AddKey(b, "acme", apiKey)
	testdb.Must(t, db.Commit(t.Context(), b))
	return db, server
}

// environ is the environment of an api: a database, any port, and pairs of other settings.
func environ(url string, pairs ...string) map[string]string {
	variables := map[string]string{"DATABASE_URL": url, "ALLOW_PRIVILEGED_DATABASE_USER": "1", "HTTP_ADDR": "127.0.0.1:0"}
	for i := 0; i < len(pairs); i += 2 {
		variables[pairs[i]] = pairs[i+1]
	}
	return variables
}

func send(t *testing.T, p *testrun.Running, key string) testrun.Response {
	t.Helper()
	return sendBody(t, p, key, charge)
}

func sendBody(t *testing.T, p *testrun.Running, key, body string) testrun.Response {
	t.Helper()
	return p.Do(t, http.MethodPost, "/v1/charges", body, map[string]string{
		"Authorization": "Bearer " + apiKey, "Content-Type": "application/json", "Idempotency-Key": key,
	})
}

func read(t *testing.T, p *testrun.Running, path string) testrun.Response {
	t.Helper()
	return p.Do(t, http.MethodGet, path, "", map[string]string{"Authorization": "Bearer " + apiKey})
}

func TestRun(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db, server := database(t)
	url := server.URL("service")

	t.Run("it serves until SIGTERM", func(t *testing.T) {
		p := testrun.Start(t, run, environ(url, "IDEMPOTENCY_RETENTION", "1h"))
		testrun.True(t, "it is ready", func() bool { return p.Get(t, "/readyz").Status == http.StatusOK })
		first := send(t, p, "key-1")
		expires, err := time.Parse(http.TimeFormat, first.Header.Get("Idempotency-Expires"))
		if first.Status != http.StatusAccepted || err != nil || time.Until(expires) > time.Hour || time.Until(expires) < 50*time.Minute {
			t.Errorf("%v, %v", first, err)
		}
		p.Stop()

		next := testrun.Start(t, run, environ(url))
		if again := send(t, next, "key-1"); again.Body != first.Body {
			t.Errorf("the next program gives another answer:\n%s%s", first.Body, again.Body)
		}
		if metrics := next.Get(t, "/metrics").Body; !strings.Contains(metrics, "\npayonce_idempotency_requests_total{result=\"replayed\"} 1\n") {
			t.Error("the replay is not counted")
		}
	})

	t.Run("without a schema it does not start", func(t *testing.T) {
		testdb.Must(t, server.CreateDatabase(t.Context(), "bare"))
		testrun.Refusal(t, run, environ(server.URL("bare")), "the database lacks a migration: run payonce migrate")
	})

	for policy, want := range map[string]struct {
		status int
		wait   time.Duration // at least
	}{
		"wait": {http.StatusConflict, 600 * time.Millisecond},
		"409":  {http.StatusConflict, 0},
		"425":  {http.StatusTooEarly, 0},
		"202":  {http.StatusAccepted, 0},
	} {
		t.Run("IN_FLIGHT="+policy, func(t *testing.T) {
			p := testrun.Start(t, run, environ(url, "IN_FLIGHT", policy, "IN_FLIGHT_WAIT", "600ms"))
			hold(t, db, "key-in-flight")
			began := time.Now()
			got := send(t, p, "key-in-flight")
			if got.Status != want.status || got.Header.Get("Retry-After") != "1" {
				t.Errorf("%v, want %d", got, want.status)
			}
			if waited := time.Since(began); waited < want.wait {
				t.Errorf("answered after %s", waited)
			}
			if got.Status == http.StatusAccepted && (got.Body != "{}" || got.Header.Get("Location") != "") {
				t.Errorf("a pending answer: %v", got)
			}
		})
	}

	t.Run("CARD_NUMBER_CHECK=off", func(t *testing.T) {
		p := testrun.Start(t, run, environ(url, "CARD_NUMBER_CHECK", "off"))
		for member, text := range map[string]string{"metadata": `{"4242424242424242":""}`, "description": `"4242424242424242"`} {
			got := sendBody(t, p, "card-"+member, strings.TrimSuffix(charge, "}")+`,"`+member+`":`+text+`}`)
			if got.Status != http.StatusAccepted {
				t.Errorf("%s: %v", member, got)
			}
		}
	})

	t.Run("STRIPE_WEBHOOK_SECRET may hold two secrets", func(t *testing.T) {
		p := testrun.Start(t, run, environ(url, "STRIPE_WEBHOOK_SECRET", "whsec_new, whsec_old"))
		for secret, want := range map[string]int{"whsec_new": http.StatusOK, "whsec_old": http.StatusOK, "whsec_other": http.StatusBadRequest, "": http.StatusBadRequest} {
			const event = `{"id":"evt_1","type":"payout.paid"}`
			at := strconv.FormatInt(time.Now().Unix(), 10)
			mac := hmac.New(sha256.New, []byte(secret))
			mac.Write([]byte(at + "." + event))
			got := p.Do(t, http.MethodPost, "/v1/webhooks/stripe", event, map[string]string{
				"Stripe-Signature": "t=" + at + ",v1=" + hex.EncodeToString(mac.Sum(nil)),
			})
			if got.Status != want {
				t.Errorf("signed by %q: status %d, want %d", secret, got.Status, want)
			}
		}
	})

	t.Run("AUTHENTICATION_FAILURES=1, TRUSTED_PROXIES and metrics", func(t *testing.T) {
		p := testrun.Start(t, run, environ(url, "AUTHENTICATION_FAILURES", "1", "TRUSTED_PROXIES", "127.0.0.0/8"))
		guess := func(from string) int {
			return p.Do(t, http.MethodGet, "/v1/balances", "", map[string]string{
				"Authorization": "Bearer " + merchants.NewKey(), "X-Forwarded-For": from,
			}).Status
		}
		if got := []int{guess("203.0.113.9"), guess("203.0.113.9"), guess("203.0.113.10")}; !slices.Equal(got, []int{401, 429, 401}) {
			t.Errorf("wrong keys are answered %v", got)
		}
		for _, want := range []string{`{result="invalid"} 2`, `{result="guessing"} 1`} {
			if metrics := p.Get(t, "/metrics").Body; !strings.Contains(metrics, "\npayonce_authentication_failures_total"+want+"\n") {
				t.Errorf("no metric says %s", want)
			}
		}
	})

	t.Run("RATE_LIMIT=1", func(t *testing.T) {
		p := testrun.Start(t, run, environ(url, "RATE_LIMIT", "1"))
		if first := send(t, p, "key-rated"); first.Status != http.StatusAccepted {
			t.Errorf("the first request: %v", first)
		}
		testrun.Progress(t, "two requests come within a second", func() (seen string, done bool) {
			got := send(t, p, "key-rated")
			return got.Body, got.Status == http.StatusTooManyRequests
		})
	})

	t.Run("while no server takes writes it answers 503", func(t *testing.T) {
		p := testrun.Start(t, run, environ(url))
		admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
		testdb.Must(t, err)
		defer func() { testdb.Must(t, admin.Close(t.Context())) }()
		readOnly := func(value string, want int) {
			testdb.Exec(t, admin, `alter database service set default_transaction_read_only = `+value)
			testdb.Exec(t, admin, `select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'payonce-api%'`)
			testrun.True(t, "it answers "+strconv.Itoa(want), func() bool { return send(t, p, "key-read-only").Status == want })
		}
		readOnly("on", http.StatusServiceUnavailable)
		if got := p.Get(t, "/readyz"); got.Status != http.StatusServiceUnavailable || !strings.Contains(got.Body, "read-only") {
			t.Errorf("it is ready: %v", got)
		}
		readOnly("off", http.StatusAccepted)
	})

	t.Run("METRICS_ADDR takes the metrics from HTTP_ADDR, and DATABASE_CONNECTIONS is among them", func(t *testing.T) {
		p := testrun.Start(t, run, environ(url, "METRICS_ADDR", "127.0.0.1:0", "DATABASE_CONNECTIONS", "7"))
		if got := p.Get(t, "/metrics"); got.Status != http.StatusNotFound {
			t.Errorf("HTTP_ADDR: %v", got)
		}
		own := testrun.Running{URL: "http://" + p.Log.Field(t, "serving metrics", "addr")}
		if got := own.Get(t, "/metrics"); !strings.Contains(got.Body, "\npayonce_db_connections_max{pool=\"main\"} 7\n") {
			t.Errorf("METRICS_ADDR: %v", got)
		}
	})

	for variable, value := range map[string]string{"HTTP_ADDR": "nonsense", "EXPECT_REPLICATION": "1"} {
		t.Run(variable+" is refused", func(t *testing.T) {
			testrun.Refusal(t, run, environ(url, variable, value), variable)
		})
	}
}

// hold inserts a key in a transaction that lasts as long as the test.
func hold(t *testing.T, db *postgres.DB, key string) {
	t.Helper()
	tx, err := db.Pool().Begin(t.Context())
	testdb.Must(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	testdb.Exec(t, tx, `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, body, expires_at)
values ('acme', 'POST /v1/charges', $1, 'another', 202, '{}', clock_timestamp() + interval '1 hour')`, key)
}

func TestRun_refusesAServer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		server   local.Options
		migrated bool
		says     string
	}{
		"that may lose commits":       {local.Options{}, true, "fsync "},
		"without the role of the api": {local.Options{Fsync: true}, false, "the database has no role payonce_api: run payonce migrate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.server.InMemory = true
			server := testdb.Server(t, test.server)
			url := server.URL("postgres")
			if test.migrated {
				url = testdb.Migrated(t, server, "service")
			}
			testrun.Refusal(t, run, environ(url), test.says)
		})
	}
}

func TestMain(m *testing.M) { testrun.Main(m) }

func TestReference_metrics(t *testing.T) {
	t.Parallel()
	r := telemetry.NewRegistry(slog.New(slog.DiscardHandler), time.Now)
	r.Database(testdb.Reused(t))
	meter(r)
	arch.Metrics(t, "api", r)
}

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
			testrun.Refusal(t, run, environ(remote, test.variable, test.value), test.variable)
		})
	}
}

func TestSettings_arePrintedWithSecretsHidden(t *testing.T) {
	t.Parallel()
	log := testrun.Refusal(t, run, map[string]string{
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
	testrun.Refusal(t, run, nil, "DATABASE_URL is not set")
}
