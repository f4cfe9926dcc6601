package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/arch"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/service"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
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
	testrun.Long(t, "it takes a large part of the time")
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
	t.Run("a message of an unknown type waits for a newer worker until GIVE_UP_AFTER", func(t *testing.T) {
		testdb.Exec(t, db.Pool(), `
insert into outbox (topic, message_id, payload, metadata)
values ('charges', 'newer 1', '{}', '{"type": "charge.reviewed.v1", "ordering_key": "ch_newer", "partition_key": "acme"}');
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
values ('notification', 'newer 2', 'ch_newer', 'charge.reviewed.v1', '{}', '{}', ''),
       ('fulfillment',  'newer 3', 'ch_other', 'adyen.refund', '{}', '{}', ''),
       ('resend',       'newer 4', 'ch_other', 'webhook.digest', '{}', '{}', '')`, pgx.QueryExecModeSimpleProtocol)
		patient := testrun.Start(t, run, working(t, url))
		testrun.Row(t, db, newer+`'pending'`)
		patient.Stop()
		testrun.Start(t, run, working(t, url, "GIVE_UP_AFTER", "1s", "BACKOFF_BASE", "10ms", "BACKOFF_CAP", "50ms"))
		testrun.Row(t, db, newer+`'dead'`)
	})
}

func TestMain(m *testing.M) { testrun.Main(m) }

func TestReference_metrics(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	db, r := testdb.Reused(t), telemetry.NewRegistry(slog.New(slog.DiscardHandler))
	r.Database(db)
	meter(r)
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
	registry := telemetry.NewRegistry(slog.New(slog.DiscardHandler))
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

// TestRun_isOfOneAccount starts workers of several accounts, one after another. The message is
// an event of an unknown charge, so it is done once the worker handles messages.
func TestRun_isOfOneAccount(t *testing.T) {
	testrun.Long(t, "it starts a server, and workers one after another")
	t.Parallel()
	url := testdb.Migrated(t, testrun.Server(t, local.Options{Fsync: true, InMemory: true}), "service")
	db := testdb.Connect(t, url)
	var status atomic.Int64
	var asked atomic.Int64
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		code := int(status.Load())
		if r.URL.Path != "/v1/account" {
			if code != http.StatusOK {
				t.Errorf("%s was asked for with a key of an unknown account", r.URL.Path)
			}
			code = http.StatusNotFound
		}
		w.WriteHeader(code)
		if code != http.StatusOK {
			_, _ = w.Write([]byte(`{"error":{"type":"invalid_request_error"}}`))
			return
		}
		_, _ = w.Write([]byte(`{"object":"account","id":"` + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer sk_test_") + `"}`))
	}))
	t.Cleanup(provider.Close)
	of := func(account string) map[string]string {
		return environ(url, "STRIPE_API_BASE", provider.URL, "STRIPE_SECRET_KEY", "sk_test_"+account)
	}
	const (
		message = `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
			values ('fulfillment', '%', 'ch_1', 'stripe.refund.updated', '{}', '{}', '')`
		open = `select count(*) = 1 from inbox where status = 'pending' and attempts = 0`
		done = `select count(*) = 0 from inbox where status <> 'done'`
	)
	testdb.Exec(t, db.Pool(), strings.Replace(message, "%", "1", 1))
	testdb.Exec(t, db.Pool(), `update restore_mark set written_in = written_in`)
	status.Store(http.StatusOK)
	testrun.Refusal(t, run, of("acct_1"), "payonce outbox repair")
	if asked.Load() > 0 {
		t.Error("a worker of a copy called the provider")
	}
	testrun.Row(t, db, open)

	status.Store(http.StatusUnauthorized)
	testdb.Exec(t, db.Pool(), `update restore_mark set written_in = pg_current_xact_id()`)
	p := testrun.Start(t, run, of("acct_1"))
	testrun.True(t, "it is not ready", func() bool { return strings.Contains(p.Get(t, "/readyz").Body, "STRIPE_SECRET_KEY") })
	testrun.Row(t, db, open)
	status.Store(http.StatusOK)
	testrun.Row(t, db, done)
	p.Stop()

	testdb.Exec(t, db.Pool(), strings.Replace(message, "%", "3", 1))
	status.Store(http.StatusForbidden) // as for a restricted key that may not read its account
	named := of("restricted")
	named["STRIPE_ACCOUNT"] = "acct_1"
	before := asked.Load()
	p = testrun.Start(t, run, named)
	testrun.Row(t, db, done)
	testrun.True(t, "it is ready", func() bool { return p.Get(t, "/readyz").Status == http.StatusOK })
	p.Stop()
	if asked.Load() > before {
		t.Error("a worker asked for the account that its setting names")
	}
	named["STRIPE_ACCOUNT"] = "acct_2"
	testrun.Refusal(t, run, named, "belongs to another account")
	status.Store(http.StatusOK)

	testdb.Exec(t, db.Pool(), strings.Replace(message, "%", "2", 1))
	testrun.Refusal(t, run, of("acct_2"), "belongs to another account")
	testrun.Row(t, db, open)
}

// TestRoute: a request goes to the receiver of charges, a webhook event to each subscriber, and
// every other event to none. A type that this program does not know is a newer program's, or
// foreign.
func TestRoute(t *testing.T) {
	t.Parallel()
	receivers := (&fulfillment.Fulfillment{}).Receivers()
	for _, name := range domain.Subscribers() {
		if !slices.ContainsFunc(receivers, func(r fulfillment.Receiver) bool { return r.Name == name }) {
			t.Errorf("the subscriber %s receives nothing", name)
		}
	}
	for _, r := range receivers {
		for _, kind := range domain.EventTypes() {
			want := kind.Request && r.Topic == domain.Topic || kind.Webhook != "" && slices.Contains(domain.Subscribers(), r.Name)
			if takes := r.Takes(kind.Name); takes != want {
				t.Errorf("%s takes %s: %t", r.Name, kind.Name, takes)
			}
		}
		for _, name := range []string{"payment_intent.succeeded", "refund.created", "charge.dispute.created", "charge.refunded", "charge.refund.updated"} {
			if takes := r.Takes(fulfillment.ProviderEvent + name); takes != (r.Name == fulfillment.ChargeReceiver) {
				t.Errorf("%s takes the provider's %s: %t", r.Name, name, takes)
			}
		}
		for _, name := range []string{"", "charge.reviewed.v1", "adyen.refund", "stripe.payout.paid", "stripe."} {
			if r.Takes(name) {
				t.Errorf("%s takes %q", r.Name, name)
			}
		}
	}
}

// A topic has one reader. What follows an event of a charge passes no topic. A restarted worker has the same host, and
// in a container the same process id: its old messages are those of another holder.
func TestProcessors_onlyNotificationsWaitBehindADeadLetter(t *testing.T) {
	t.Parallel()
	type of struct {
		Topic       string
		DeadLetters inbox.DeadLetters
	}
	want := map[string]of{
		fulfillment.ChargeReceiver: {domain.Topic, inbox.Pass}, fulfillment.NotificationReceiver: {"", inbox.Block},
		fulfillment.ResendReceiver: {"", inbox.Pass},
	}
	got, holders := map[string]of{}, map[string]bool{}
	for range 2 {
		receivers, err := processors(&service.Service{DB: &postgres.DB{}, Bell: service.NewBell(nil)}, fulfillment.Services{}, nil, settings{})
		testdb.Must(t, err)
		for _, r := range receivers {
			got[r.Name] = of{r.Topic, r.processor.Policy.DeadLetters}
			holder := r.Name + " " + r.processor.Holder
			if holders[holder] || !strings.HasPrefix(r.processor.Holder, program.Instance()+"/") {
				t.Errorf("%s has the holder %s, after %v", r.Name, r.processor.Holder, holders)
			}
			holders[holder] = true
		}
	}
	testrun.Same(t, "receivers", want, got)
}

// forged are rows that the database accepts from a login and that no program has written.
// The worker's login can write those of the api's too.
var forged = map[string]string{
	"payonce_api": `
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
values ('11111111-1111-8111-8111-111111111111', 'ch_unreadable', 1, 'charge.requested.v1', 'acme',
        '{"merchant_id":"acme","amount":1,"order_id":"1","reference":"ref_822b33ad87c148a00","steps":["magic","payment"]}', '{"actor":"api"}', now());
insert into outbox (topic, message_id, payload, metadata)
select 'charges', '11111111-1111-8111-8111-111111111111',
       '{"id":"11111111-1111-8111-8111-111111111111","type":"charge.requested.v1","charge_id":"ch_unreadable","version":1}',
       '{"type":"charge.requested.v1","ordering_key":"ch_unreadable","partition_key":"acme","traceparent":{"a":[7]}}'
  from generate_series(1, 3);
insert into outbox (topic, message_id, payload, metadata)
values ('charges', 'evt_1', '\xff', '{"type":"stripe.refund.updated","ordering_key":"ch_unreadable","partition_key":"acme","traceparent":[7]}'),
       ('charges', 'evt_1', '\xfe', '{"type":"stripe.refund.updated","ordering_key":"ch_unreadable","partition_key":"acme"}');
insert into idempotency_keys (scope, operation, key, fingerprint, request, status_code, headers, body, expires_at)
values ('acme', 'POST /v1/charges', 'forged', '', '\xff', 202, '7', '\xff', now() - interval '1 hour')`,
	"payonce_worker": `
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), 'ch_forged', 1, 'charge.succeeded.v1', 'acme', '{}', '{}', now()),
       (gen_random_uuid(), 'ch_void', 1, 'charge.requested.v1', 'acme', '{"merchant_id":"acme","amount":1,"items":7}', '{}', now()),
       (gen_random_uuid(), 'ch_exploded', 1, 'charge.exploded.v9', 'acme', '{}', '{}', now());
insert into outbox (topic, message_id, payload, metadata)
values ('charges',  'forged 1', '\xff', '{"type":7,"ordering_key":{},"partition_key":[]}'),
       ('charges',  'forged 2', '{"version":-1}', '{"type":"charge.requested.v1","ordering_key":"ch_none"}'),
       ('charges',  'forged 3', '', jsonb_build_object('type', 'refund.requested.v1', 'ordering_key', repeat('x', 99999)));
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, first)
values ('fulfillment',  'forged 5', 'ch_none', 'charge.requested.v1', '\xff', '{}', '', 'running', true),
       ('fulfillment',  'forged 6', 'ch_exploded', 'charge.requested.v1', '', '"x"', '', 'pending', false),
       ('notification', 'forged 7', 'ch_forged', 'charge.succeeded.v1', '{}', '{}', '', 'pending', true),
       ('notification', 'forged 4', 'ch_forged', 'charge.succeeded.v1', 'null', '{}', '', 'pending', false),
       ('fulfillment',  'forged 9', 'ch_void', 'charge.requested.v1', '', '{}', '', 'pending', true),
       ('fulfillment',  'forged 8', 'ch_old', 'more', '', '{}', '', 'pending', false);
update inbox set holder = 'unknown', attempts = 1, fence = 1 where message_id = 'forged 5';
update inbox set attempts = 99 where message_id = 'forged 7';
update inbox set due_at = 'infinity' where message_id in ('forged 5', 'forged 9');
update inbox set status = 'done', fence = 1, done_fence = 1, finished_at = '-infinity' where message_id = 'forged 8'`,
}

// TestRun_passesForgedRows: rows that a stolen login has written stand before good ones. The
// receivers, the balances, the retention job and the audit go on to these, and count the others.
func TestRun_passesForgedRows(t *testing.T) {
	testrun.Long(t, "it waits for leases and retention")
	t.Parallel()
	url := testdb.Migrated(t, testrun.Server(t, local.Options{Fsync: true, InMemory: true}), "forged")
	db := testdb.Connect(t, url)
	testdb.Exec(t, db.Pool(), `insert into merchants (merchant_id) values ('acme')`)
	for role, rows := range forged {
		testdb.Exec(t, db.Pool(), `begin; set local role `+role+`; set local payonce.merchant = 'acme'; `+rows+`; commit`, pgx.QueryExecModeSimpleProtocol)
	}
	b := &pgx.Batch{}
	s, err := ledger.Append(b, ledger.New("ch_good"), ledger.Cause{CausationID: "1"}, domain.ChargeRequested{Terms: domain.Terms{
		MerchantID: "acme", OrderID: "17", Money: domain.Money{Amount: 1000, Currency: "EUR"},
		PaymentMethod: "pm_card_visa", Items: []domain.Item{{SKU: "sold out", Quantity: 1}},
	}, Steps: domain.Steps()})
	testdb.Must(t, err)
	payload := s.EncodeEnvelope(s.Head())
	testdb.Must(t, outbox.Append(b, outbox.Message{Topic: domain.Topic, ID: s.Head().ID.String(), Type: s.Head().Type, OrderingKey: s.ID, Payload: payload}))
	b.Queue(`
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, body, expires_at)
values ('acme', 'POST /v1/charges', 'good', '', 202, '{}', now())`)
	testdb.Must(t, db.Commit(t.Context(), b))

	p := testrun.Start(t, run, working(t, url, "LEASE", "500ms", "MAX_ATTEMPTS", "2", "BACKOFF_BASE", "10ms", "BACKOFF_CAP", "50ms", "INBOX_RETENTION", "2s"))
	for what, sql := range map[string]string{
		"the good charge is carried out": `select count(*) = 1 from ledger_events where stream_id = 'ch_good' and type = 'charge.failed.v1'`,
		"the balances have every event": `select not exists (
			select from ledger_events e join followers f on (e.txid, e.position) > (f.txid, f.position) where f.name = 'balances')`,
		"its message is forgotten": `select count(*) = 0 from inbox where ordering_key = 'ch_good' or message_id = 'forged 8'`,
		"the outbox is empty":      `select count(*) = 0 from outbox`,
		"both keys are tombstones": `select count(*) = 2 from idempotency_keys where body is null`,
		// A type that only a newer program knows, and a webhook behind a dead letter, wait. Another
		// payload under a known id is a dead letter.
		"the forged messages are dead letters or wait": `
select count(*) filter (where status = 'dead') = 6
   and count(*) filter (where status = 'dead' and last_error = 'the id evt_1 is known with another payload') = 1
   and count(*) filter (where status = 'pending' and (message_id in ('forged 4', 'forged 6') or ordering_key = 'ch_unreadable')) = 4
  from inbox`,
	} {
		t.Run(what, func(t *testing.T) { testrun.Row(t, db, sql) })
	}
	testrun.True(t, "the figures count them", func() bool {
		shown := p.Get(t, "/metrics").Body
		return strings.Contains(shown, `payonce_inbox_messages{receiver="fulfillment",status="dead"}`)
	})
	report, err := audit.Run(t.Context(), db.Pool())
	if err != nil || report.OK {
		t.Errorf("the audit finds %+v: %v", report, err)
	}
	for _, c := range report.Checks {
		if c.Name == "one outcome per charge, and one capture if it succeeded" && c.Violated != 1 {
			t.Errorf("%+v", c)
		}
	}
}
