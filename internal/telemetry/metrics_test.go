package telemetry_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/testdb"
)

func TestAPI(t *testing.T) {
	t.Parallel()
	c, clock, _ := config()
	m := telemetry.NewAPI(c, []string{"first", "replayed"}, []string{"made", "taken"})
	want(t, scrape(t, m.Handler()), map[string]float64{
		`payonce_idempotency_requests_total{result="replayed"}`: 0,
		`payonce_idempotency_commits_total{result="taken"}`:     0,
		`payonce_webhook_events_total{result="duplicate"}`:      0,
		`payonce_idempotency_lookup_duration_seconds_count`:     0,
	})
	m.Answered("POST", "/v1/charges", 202, 30*time.Millisecond, "first")
	m.Answered("POST", "/v1/charges", 202, 3*time.Millisecond, "replayed")
	m.Answered("GET", "", 404, time.Millisecond, "")
	looked := m.Looking()
	clock.pass(200 * time.Millisecond)
	looked()
	m.Committed("made")
	m.Event(1, 0, 0)
	m.Event(0, 1, 0)
	m.Event(0, 0, 1)
	want(t, scrape(t, m.Handler()), map[string]float64{
		`payonce_http_requests_total{method="POST",route="/v1/charges",status="202"}`:  2,
		`payonce_http_requests_total{method="GET",route="none",status="404"}`:          1,
		`payonce_http_request_duration_seconds_bucket{route="/v1/charges",le="0.005"}`: 1,
		`payonce_http_request_duration_seconds_bucket{route="/v1/charges",le="0.05"}`:  2,
		`payonce_idempotency_requests_total{result="first"}`:                           1,
		`payonce_idempotency_requests_total{result="replayed"}`:                        1,
		`payonce_idempotency_commits_total{result="made"}`:                             1,
		`payonce_idempotency_lookup_duration_seconds_bucket{le="0.1"}`:                 0,
		`payonce_idempotency_lookup_duration_seconds_bucket{le="0.25"}`:                1,
		`payonce_webhook_events_total{result="first"}`:                                 1,
		`payonce_webhook_events_total{result="duplicate"}`:                             1,
		`payonce_webhook_events_total{result="quarantined"}`:                           1,
	})
}

func TestWorker(t *testing.T) {
	t.Parallel()
	c, clock, _ := config()
	m := telemetry.NewWorker(c, telemetry.Names{
		Receivers: []string{"fulfillment"}, Ends: []string{"done", "lost"}, Steps: []string{"payment"}, Calls: []string{"POST refunds"},
	})
	want(t, scrape(t, m.Handler()), map[string]float64{
		`payonce_inbox_messages_processed_total{receiver="fulfillment",result="lost"}`: 0,
		`payonce_inbox_holder_deaths_total{receiver="fulfillment"}`:                    0,
		`payonce_provider_requests_total{call="POST refunds",result="unavailable"}`:    0,
		`payonce_provider_replays_total{call="POST refunds"}`:                          0,
		`payonce_step_duration_seconds_count{step="payment"}`:                          0,
		`payonce_outbox_deliveries_total{result="quarantined"}`:                        0,
	})
	m.Received(2, 1, 0)
	m.Claimed("fulfillment", 5, 2)
	m.Ended("fulfillment", "done")
	handled, stepped := m.Handling("fulfillment"), m.Stepping("payment")
	for status, replayed := range map[int]bool{200: true, 402: false, 429: false, 500: true, 0: false, 302: false} {
		answered := m.Calling("POST refunds")
		clock.pass(100 * time.Millisecond)
		answered(status, replayed)
	}
	stepped()
	clock.pass(time.Second)
	handled()
	want(t, scrape(t, m.Handler()), map[string]float64{
		`payonce_outbox_deliveries_total{result="first"}`:                              2,
		`payonce_outbox_deliveries_total{result="duplicate"}`:                          1,
		`payonce_inbox_attempts_total{receiver="fulfillment"}`:                         5,
		`payonce_inbox_holder_deaths_total{receiver="fulfillment"}`:                    2,
		`payonce_inbox_messages_processed_total{receiver="fulfillment",result="done"}`: 1,
		`payonce_provider_requests_total{call="POST refunds",result="ok"}`:             1,
		`payonce_provider_requests_total{call="POST refunds",result="refused"}`:        1,
		`payonce_provider_requests_total{call="POST refunds",result="failed"}`:         1,
		`payonce_provider_requests_total{call="POST refunds",result="unavailable"}`:    3,
		`payonce_provider_replays_total{call="POST refunds"}`:                          2,
		`payonce_provider_request_duration_seconds_count{call="POST refunds"}`:         6,
		`payonce_step_duration_seconds_sum{step="payment"}`:                            0.6,
		`payonce_inbox_handler_duration_seconds_sum{receiver="fulfillment"}`:           1.6,
	})
}

// TestRegistry reads what a program knows without its database, at each scrape. Two
// programs of one process, as in tests, share nothing.
func TestRegistry(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	c, _, _ := config()
	m, other := telemetry.NewWorker(c, telemetry.Names{}), telemetry.NewWorker(c, telemetry.Names{})
	m.Received(1, 0, 0)
	m.Pools(map[string]*pgxpool.Pool{"main": db.Pool()})
	m.Shared(func() postgres.Shared { return postgres.Shared{Commits: 2, Units: 7, Refusals: 1} })
	listening := false
	m.Doorbell(func() bool { return listening })
	want(t, scrape(t, m.Handler()), map[string]float64{`payonce_doorbell_listening`: 0})
	listening = true
	conn, err := db.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	got := scrape(t, m.Handler())
	want(t, got, map[string]float64{
		`payonce_doorbell_listening`:                         1,
		`payonce_db_connections{pool="main",state="in_use"}`: 1,
		`payonce_db_connections_max{pool="main"}`:            float64(db.Pool().Config().MaxConns),
		`payonce_shared_commits_total`:                       2,
		`payonce_shared_commit_decisions_total`:              7,
		`payonce_shared_commit_refusals_total`:               1,
	})
	if got[`payonce_db_acquires_total{pool="main"}`] < 1 {
		t.Error("no connection was taken")
	}
	want(t, scrape(t, other.Handler()), map[string]float64{`payonce_outbox_deliveries_total{result="first"}`: 0})
}
