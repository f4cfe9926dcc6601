package main

import (
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	server := testrun.Server(t, local.Options{Fsync: true, InMemory: true})
	db := testdb.Connect(t, testdb.Migrated(t, server, "service"))
	b := &pgx.Batch{}
	merchants.Register(b, merchants.Merchant{ID: "acme"}, merchants.Webhook{}, nil)
	merchants.IssueKey(b, apiKey, merchants.Grant{Merchant: "acme", Scopes: merchants.Scopes()})
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
	testrun.Long(t, "it takes a large part of the time")
	t.Parallel()
	_, server := database(t)
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

	t.Run("CARD_NUMBER_CHECK=off", func(t *testing.T) {
		p := testrun.Start(t, run, environ(url, "CARD_NUMBER_CHECK", "off"))
		for member, text := range map[string]string{"metadata": `{"4242424242424242":""}`, "description": `"4242424242424242"`} {
			got := sendBody(t, p, "card-"+member, strings.TrimSuffix(charge, "}")+`,"`+member+`":`+text+`}`)
			if got.Status != http.StatusAccepted {
				t.Errorf("%s: %v", member, got)
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
		testrun.Progress(t, "/readyz says why", func() (seen string, done bool) {
			got := p.Get(t, "/readyz")
			return got.Body, got.Status == http.StatusServiceUnavailable && strings.Contains(got.Body, "read-only")
		})
		if got := p.Get(t, "/healthz"); got.Status != http.StatusOK || got.Header.Get("Content-Type") != "application/json" {
			t.Errorf("it does not live: %v", got)
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

func TestRun_refusesAServerThatMayLoseCommits(t *testing.T) {
	testrun.Long(t, "it starts a server")
	t.Parallel()
	server := testrun.Server(t, local.Options{InMemory: true})
	testrun.Refusal(t, run, environ(testdb.Migrated(t, server, "service")), "fsync ")
}

func TestMain(m *testing.M) { testrun.Main(m) }

func TestReference_metrics(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	r := telemetry.NewRegistry(slog.New(slog.DiscardHandler))
	r.Database(testdb.Reused(t))
	meter(r)
	arch.Metrics(t, "api", r)
}

// remote is an address that is refused before anything is dialed.
const remote = "postgres://payonce:hunter2@db.example/payonce?sslmode=disable"

func TestSettings_refusesUnsafeValues(t *testing.T) {
	t.Parallel()
	testrun.Refusal(t, run, nil, `"DATABASE_URL" is not set`)
	for unsafe := range strings.FieldsSeq(`DATABASE_URL=` + remote + ` DATABASE_URL=postgres://payonce:hunter2@db.example/payonce?sslmode=require
DATABASE_CONNECTIONS=4 IN_FLIGHT=503 IN_FLIGHT_WAIT=0s IN_FLIGHT_WAIT=11s IDEMPOTENCY_RETENTION=0s RATE_LIMIT=-1
AUTHENTICATION_FAILURES=-1 CARD_NUMBER_CHECK=false`) {
		variable, value, _ := strings.Cut(unsafe, "=")
		testrun.Refusal(t, run, environ(remote, variable, value), variable)
	}
}

// TestSettings_configureTheAPI: what internal/httpapi is configured by, and tested with.
func TestSettings_configureTheAPI(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]struct {
		status int
		wait   time.Duration
	}{
		"wait": {http.StatusConflict, time.Second}, "409": {http.StatusConflict, -1},
		"425": {http.StatusTooEarly, -1}, "202": {http.StatusAccepted, -1},
	} {
		s := settings{InFlight: policy, InFlightWait: time.Second, RateLimit: 7, StripeWebhookSecret: "whsec_new, whsec_old"}
		c := s.config()
		if c.InFlight != want.status || s.wait() != want.wait || c.Limits.PerSecond != 7 || !slices.Equal(c.StripeSecrets, []string{"whsec_new", "whsec_old"}) {
			t.Errorf("IN_FLIGHT=%s is %d after %s; of %+v", policy, c.InFlight, s.wait(), c)
		}
	}
	if secrets := (settings{}).config().StripeSecrets; len(secrets) > 0 {
		t.Errorf("without a secret there is %q", secrets)
	}
}

// TestRun_withoutItsStandby sends more charges than the api has connections while no standby confirms
// a commit: reads are answered, /readyz says why charges are not, and each charge is accepted once.
// idempotency.TestPromises_withoutTheStandby has the answers of such a request.
func TestRun_withoutItsStandby(t *testing.T) {
	t.Parallel()
	testrun.Long(t, "it starts a server with a standby")
	db, server := database(t)
	standby := testdb.StandbyOf(t, server, "service")
	p := testrun.Start(t, run, environ(server.URL("service"), "DATABASE_CONNECTIONS", "5"))
	first := send(t, p, "key-first")

	standby.Leaves(t)
	var all sync.WaitGroup
	const keys = 12
	for n := range keys {
		all.Go(func() {
			key := "key-" + strconv.Itoa(n)
			testrun.True(t, key+" is accepted", func() bool {
				got := sendBody(t, p, key, strings.Replace(charge, "order-1", "order-"+key, 1))
				if got.Status != http.StatusAccepted && (!strings.Contains(got.Body, `"retry_with":"same-key"`) || got.Header.Get("Retry-After") == "") {
					t.Errorf("a charge is answered %v", got)
				}
				return got.Status == http.StatusAccepted
			})
		})
	}
	testrun.Progress(t, "/readyz says why", func() (seen string, done bool) {
		got := p.Get(t, "/readyz")
		return got.Body, got.Status == http.StatusServiceUnavailable && strings.Contains(got.Body, "standby")
	})
	all.Go(func() {
		testrun.True(t, "the replay is the first answer", func() bool { return send(t, p, "key-first").Body == first.Body })
	})
	for _, path := range []string{first.Header.Get("Location"), "/v1/charges", "/v1/balances"} {
		if got := read(t, p, path); got.Status != http.StatusOK {
			t.Errorf("%s is answered %v", path, got)
		}
	}
	if n := testdb.One[int](t, standby, `select count(*) from pg_stat_activity where wait_event = 'SyncRep' and datname = current_database()`); n < 1 || n > 3 {
		t.Errorf("%d sessions of the server wait, want 3 at most: 2 in commits and 1 in the read of keys", n)
	}

	standby.Returns(t)
	testrun.True(t, "the api is ready", func() bool { return p.Get(t, "/readyz").Status == http.StatusOK })
	all.Wait()
	if n := testdb.One[int](t, db, `select count(*) from outbox`); n != 1+keys {
		t.Errorf("%d messages were committed, want %d", n, 1+keys)
	}
}
