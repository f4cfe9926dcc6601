package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/arch"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// environ is the environment of a worker: a database, a provider that is away, any port,
// and pairs of other settings.
func environ(url string, pairs ...string) map[string]string {
	variables := map[string]string{
		"DATABASE_URL": url, "ALLOW_PRIVILEGED_DATABASE_USER": "1", "HTTP_ADDR": "127.0.0.1:0",
		"STRIPE_SECRET_KEY": "sk_test_hunter2", "STRIPE_API_BASE": "http://127.0.0.1:1",
	}
	for i := 0; i < len(pairs); i += 2 {
		variables[pairs[i]] = pairs[i+1]
	}
	return variables
}

// working is environ with a provider that names its account, and is away then.
func working(t *testing.T, url string, pairs ...string) map[string]string {
	t.Helper()
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/account" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(`{"object":"account","id":"acct_1"}`))
	}))
	t.Cleanup(provider.Close)
	return environ(url, append(pairs, "STRIPE_API_BASE", provider.URL)...)
}

func TestRun(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	server := testrun.Server(t, local.Options{Fsync: true, InMemory: true})
	url := testdb.Migrated(t, server, "service")
	db := testdb.Connect(t, url)

	t.Run("it is ready until SIGTERM", func(t *testing.T) {
		p := testrun.Start(t, run, working(t, url))
		if got := p.Get(t, "/healthz"); got.Status != http.StatusOK {
			t.Errorf("healthz: %v", got)
		}
		testrun.True(t, "it is ready", func() bool { return p.Get(t, "/readyz").Status == http.StatusOK })
		testrun.Row(t, db, `select count(*) = 1 from pg_stat_activity where datname = current_database() and query = 'listen "payonce_due"'`)
	})
	t.Run("what is paused waits, and is shown", func(t *testing.T) {
		set := func(paused string) {
			t.Helper()
			testdb.Exec(t, db.Pool(), `
insert into pauses (what, merchant_id, paused) values ('notification', '', `+paused+`), ('merchant', 'acme', `+paused+`)
on conflict (what, merchant_id) do update set paused = excluded.paused`)
		}
		set("true")
		testdb.Exec(t, db.Pool(), `
insert into inbox (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, first)
values ('notification', '1', 'ch_0', '', 'charge.succeeded.v1', '{}', '{}', '', true),
       ('fulfillment',  '2', 'ch_0', 'acme', 'charge.requested.v1', '{}', '{}', '', true),
       ('fulfillment',  '3', 'ch_1', '', 'charge.requested.v1', '{}', '{}', '', true)`)
		p := testrun.Start(t, run, working(t, url, "MAX_ATTEMPTS", "1"))
		testrun.True(t, "it says so", func() bool {
			metrics := p.Get(t, "/metrics").Body
			return strings.Contains(metrics, `payonce_paused{what="merchant"} 1`) && strings.Contains(metrics, `payonce_paused{what="fulfillment"} 0`)
		})
		testrun.Row(t, db, `select count(*) = 1 from inbox where message_id = '3' and status = 'dead'`)
		testrun.Row(t, db, `select count(*) = 2 from inbox where message_id in ('1', '2') and status = 'pending' and fence = 0`)
		set("false")
		testrun.Row(t, db, `select count(*) = 0 from inbox where status = 'pending' and attempts + waits = 0`)
	})
	t.Run("a repeated message is counted as a duplicate, and another payload under its id as a dead letter", func(t *testing.T) {
		p := testrun.Start(t, run, working(t, url))
		testdb.Exec(t, db.Pool(), `
insert into outbox (topic, message_id, payload, metadata)
select 'charges', '4', convert_to(payload, 'UTF8'), '{"type": "charge.requested.v1", "ordering_key": "ch_9"}'
  from unnest(array['{}', '{}', '{"version":1}']) payload`)
		testrun.True(t, "they are", func() bool {
			metrics := p.Get(t, "/metrics").Body
			return !slices.ContainsFunc([]string{"first", "duplicate", "dead_letter"}, func(result string) bool {
				return !strings.Contains(metrics, `payonce_outbox_deliveries_total{result="`+result+`"} 1`)
			})
		})
		testrun.Row(t, db, `select count(*) = 0 from outbox`)
	})
	const newer = `
select count(*) = 4 and bool_and(waits > 0 and last_error like '%unknown type of message%')
  from inbox
 where message_id like 'newer %' and status = `
	t.Run("a message of an unknown type waits for a newer worker", func(t *testing.T) {
		testdb.Exec(t, db.Pool(), `
insert into outbox (topic, message_id, payload, metadata)
values ('charges', 'newer 1', '{}', '{"type": "charge.reviewed.v1", "ordering_key": "ch_newer", "partition_key": "acme"}');
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
values ('notification', 'newer 2', 'ch_newer', 'charge.reviewed.v1', '{}', '{}', ''),
       ('fulfillment',  'newer 3', 'ch_other', 'adyen.refund', '{}', '{}', ''),
       ('resend',       'newer 4', 'ch_other', 'webhook.digest', '{}', '{}', '')`, pgx.QueryExecModeSimpleProtocol)
		testrun.Start(t, run, working(t, url))
		testrun.Row(t, db, newer+`'pending'`)
	})
	t.Run("a message of an unknown type becomes a dead letter after GIVE_UP_AFTER", func(t *testing.T) {
		testrun.Start(t, run, working(t, url, "GIVE_UP_AFTER", "1s", "BACKOFF_BASE", "10ms", "BACKOFF_CAP", "50ms"))
		testrun.Row(t, db, newer+`'dead'`)
	})
}

func TestMain(m *testing.M) { testrun.Main(m) }

func TestReference_metrics(t *testing.T) {
	t.Parallel()
	db, r := testdb.Reused(t), telemetry.NewRegistry(slog.New(slog.DiscardHandler), time.Now)
	r.Database(db)
	meter(r)
	r.Circuit(stripe.Circuits(), func() string { return "" })
	r.Figures(db, domain.Topic, receiverNames())
	arch.Metrics(t, "worker", r)
}

// remote is an address that is refused before anything is dialed.
const remote = "postgres://payonce:hunter2@db.example/payonce?sslmode=disable"

func TestSettings_refusesUnsafeValues(t *testing.T) {
	t.Parallel()
	for unsafe := range strings.FieldsSeq(`DATABASE_URL= DATABASE_URL=` + remote + ` DATABASE_CONNECTIONS=0 STRIPE_SECRET_KEY=
STRIPE_API_BASE=https://api.example/v1 WORKER_CONCURRENCY=0 WORKER_CONCURRENCY=10001 LEASE=99ms MAX_ATTEMPTS=0 GIVE_UP_AFTER=0s
BACKOFF_BASE=0s BACKOFF_CAP=100ms AUDIT_INTERVAL=-1s INBOX_RETENTION=0s WEBHOOK_ALLOW_CIDRS=localhost`) {
		variable, value, _ := strings.Cut(unsafe, "=")
		testrun.Refusal(t, run, environ(remote, variable, value), variable)
	}
}

// TestObserveProvider counts each answer of the provider under one of four results, and
// the replays apart.
func TestObserveProvider(t *testing.T) {
	t.Parallel()
	registry := telemetry.NewRegistry(slog.New(slog.DiscardHandler), time.Now)
	observe := meter(registry).observeProvider(nil, "")
	for status, replayed := range map[int]bool{200: true, 402: false, 429: false, 500: true, 0: false, 302: false} {
		observe(t.Context(), "POST refunds")(stripe.Answered{Status: status, Replayed: replayed})
	}
	w := httptest.NewRecorder()
	registry.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`payonce_provider_requests_total{call="POST refunds",result="ok"} 1`,
		`payonce_provider_requests_total{call="POST refunds",result="refused"} 1`,
		`payonce_provider_requests_total{call="POST refunds",result="failed"} 1`,
		`payonce_provider_requests_total{call="POST refunds",result="unavailable"} 3`,
		`payonce_provider_replays_total{call="POST refunds"} 2`,
		`payonce_provider_request_duration_seconds_count{call="POST refunds"} 6`,
		`payonce_provider_requests_total{call="GET refunds",result="ok"} 0`,
	} {
		if !strings.Contains(w.Body.String(), "\n"+want+"\n") {
			t.Errorf("not served: %s", want)
		}
	}
}
