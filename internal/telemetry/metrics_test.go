package telemetry_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestRegistry: metrics exist before they count, what a program knows without its database
// is read at each scrape, and two programs of one process, as in tests, share nothing.
func TestRegistry(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	db := testdb.Open(t)
	m, _ := registry()
	other, _ := registry()
	receiver, result := telemetry.LabelOf("receiver", "a", "b"), telemetry.LabelOf("result", "done", "lost")
	ended := m.Counter("payonce_ended_total", "Ends.", receiver, result)
	requests := m.Counter("payonce_requests_total", "Requests.", telemetry.Label{Name: "route"})
	lookup := m.Times("payonce_lookup_seconds", "Look-ups.")
	calling := m.Times("payonce_call_seconds", "Calls.", telemetry.LabelOf("call", "GET"))
	m.Database(db)
	want(t, scrape(t, m.Handler()), map[string]float64{
		`payonce_ended_total{receiver="a",result="done"}`:  0,
		`payonce_ended_total{receiver="b",result="lost"}`:  0,
		`payonce_lookup_seconds_count`:                     0,
		`payonce_call_seconds_bucket{call="GET",le="0.1"}`: 0,
		`payonce_db_timeline`:                              1,
	})

	ended.Add(2, "b", "lost")
	requests.Add(1, "/v1/charges")
	end := lookup.Time()
	<-time.After(150 * time.Millisecond)
	end()
	calling.Time("GET")()
	conn, err := db.Pool().Acquire(t.Context())
	testdb.Must(t, err)
	defer conn.Release()
	got := scrape(t, m.Handler())
	want(t, got, map[string]float64{
		`payonce_ended_total{receiver="a",result="done"}`:    0,
		`payonce_ended_total{receiver="b",result="lost"}`:    2,
		`payonce_requests_total{route="/v1/charges"}`:        1,
		`payonce_lookup_seconds_bucket{le="0.1"}`:            0,
		`payonce_lookup_seconds_count`:                       1,
		`payonce_call_seconds_count{call="GET"}`:             1,
		`payonce_db_timeline`:                                1,
		`payonce_db_connections{pool="main",state="in_use"}`: 1,
		`payonce_db_connections_max{pool="main"}`:            float64(db.Pool().Config().MaxConns),
		`payonce_late_commits`:                               0,
	})
	for _, name := range []string{`go_goroutines`, `process_resident_memory_bytes`} {
		if got[name] < 1 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	if n, there := scrape(t, other.Handler())[`payonce_ended_total{receiver="b",result="lost"}`]; there {
		t.Errorf("the other program counts %v ends", n)
	}
}

func registry() (*telemetry.Registry, *testrun.Log) {
	log := &testrun.Log{}
	return telemetry.NewRegistry(slog.New(slog.NewTextHandler(log, nil))), log
}

// scrape reads all samples by their names and labels.
func scrape(t *testing.T, h http.Handler) map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	found := map[string]float64{}
	for line := range strings.Lines(w.Body.String()) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		testdb.Must(t, err)
		found[line[:at]] = value
	}
	return found
}

// want compares some of the samples.
func want(t *testing.T, got map[string]float64, samples map[string]float64) {
	t.Helper()
	for name, value := range samples {
		if v, there := got[name]; !there || v != value {
			t.Errorf("%s is %v (%t), want %v", name, v, there, value)
		}
	}
}

// figures returns the metrics of a program of db, which count a delivery.
func figures(db *postgres.DB) (*telemetry.Registry, *testrun.Log) {
	m, log := registry()
	m.Counter("payonce_deliveries_total", "Deliveries.").Add(1)
	m.Figures(db, "charges", []string{"fulfillment", "notification"})
	return m, log
}

const insertMessages = `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, first, received_at, fence, done_fence)
select 'fulfillment', $1 || n, $1 || n, 't', '', '{}', '', $1, $1 <> 'done', clock_timestamp() - $3::interval, 1, case $1 when 'done' then 1 end
  from generate_series(1, $2::int) as n`

// ages are samples that must be between two values.
func ages(t *testing.T, got map[string]float64, want map[string][2]float64) {
	t.Helper()
	for name, within := range want {
		if v, there := got[name]; !there || v < within[0] || v > within[1] {
			t.Errorf("%s is %v (%t), want %v", name, v, there, within)
		}
	}
}

const unread = `payonce_outbox_unread_messages{topic="charges"}`

// TestFigures reads with the role of the worker.
func TestFigures(t *testing.T) {
	testrun.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := testdb.Open(t)
	worker := testdb.As(t, db, postgres.RoleWorker)
	early, _ := figures(worker)
	empty := scrape(t, early.Handler())
	want(t, empty, map[string]float64{
		`payonce_figures_up`: 1,
		`payonce_inbox_messages{receiver="notification",status="pending"}`: 0,
		`payonce_inbox_oldest_age_seconds{receiver="notification"}`:        0,
		unread: 0,
	})
	for name := range empty {
		if strings.HasPrefix(name, "payonce_audit_") && !strings.Contains(name, `"recent"`) {
			t.Errorf("there was no audit, and yet there is %s", name)
		}
	}
	for _, messages := range []struct {
		status string
		n      int
		age    time.Duration
	}{{"pending", 3, time.Minute}, {"running", 2, time.Hour}, {"dead", 1, 24 * time.Hour}, {"done", 5, 48 * time.Hour}} {
		testdb.Exec(t, db.Pool(), insertMessages, messages.status, messages.n, messages.age)
	}
	testdb.Exec(t, db.Pool(), `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, first, waits, due_at, received_at)
select 'fulfillment', 'waits' || n, 'waits', 't', '', '{}', '', n = 0, 1 - n, clock_timestamp() + interval '1 hour' * (1 - n), clock_timestamp() - interval '72 hours'
  from generate_series(0, 1) as n`) // one waits patiently for three days, the other is behind it
	testdb.Exec(t, db.Pool(), `
insert into outbox (topic, message_id, payload, metadata, created_at)
select 'charges', 'm' || n, '', '{}', clock_timestamp() - interval '90 seconds'
  from generate_series(1, 4) as n`)
	results := &pgx.Batch{}
	audit.Record(results, audit.ScopeTables, audit.Check{Checked: 7, Violated: 2}, audit.Check{Checked: 3, Violated: 1})
	audit.Record(results, audit.ScopeProvider, audit.Check{Checked: 1})
	results.Queue(`update audit_progress set checked = 20, violated = 5, superseded = 3`)
	results.Queue(`
insert into ledger_events (event_id, stream_id, version, type, merchant_id, data, metadata, occurred_at, recorded_at)
values (gen_random_uuid(), 'ch_1', 1, 'charge.requested.v1', 'acme', '{}', '{}', now(), now() - interval '1 hour')`)
	testdb.Must(t, db.Commit(t.Context(), results))
	m, log := figures(worker)
	got := scrape(t, m.Handler())
	want(t, got, map[string]float64{
		`payonce_figures_up`: 1,
		`payonce_inbox_messages{receiver="fulfillment",status="pending"}`: 4,
		`payonce_inbox_messages{receiver="fulfillment",status="waiting"}`: 1,
		`payonce_inbox_messages{receiver="fulfillment",status="running"}`: 2,
		`payonce_inbox_messages{receiver="fulfillment",status="dead"}`:    1,
		unread: 4,
		`payonce_audit_violations{scope="tables"}`:   3,
		`payonce_audit_violations{scope="provider"}`: 0,
		`payonce_audit_violations{scope="recent"}`:   2,
	})
	now := float64(time.Now().Unix())
	ages(t, got, map[string][2]float64{
		`payonce_inbox_oldest_age_seconds{receiver="fulfillment"}`: {3600, 3660},
		`payonce_outbox_unread_age_seconds{topic="charges"}`:       {90, 150},
		`payonce_audit_finished_timestamp_seconds{scope="tables"}`: {now - 60, now + 60},
		`payonce_audit_finished_timestamp_seconds{scope="recent"}`: {now - 3660, now - 3540},
	})
	want(t, scrape(t, early.Handler()), map[string]float64{unread: 0}) // for ten seconds
	testdb.Exec(t, db.Pool(), `delete from audit_results where scope = 'provider'`)
	testrun.True(t, "they are read again, and what is gone is not shown", func() bool {
		again := scrape(t, m.Handler())
		_, shown := again[`payonce_audit_violations{scope="provider"}`]
		return again[`payonce_figures_up`] == 1 && !shown
	})
	if log.String() != "" {
		t.Errorf("logged: %s", log)
	}
}

// What the program knows without the database is shown in time, and the failure is logged.
func TestFigures_doNotFailAScrapeWithTheDatabase(t *testing.T) {
	testrun.Long(t, "it waits for a lock")
	t.Parallel()
	for name, trouble := range map[string]func(t *testing.T, db *postgres.DB){
		"a table is gone": func(t *testing.T, db *postgres.DB) { t.Helper(); testdb.Exec(t, db.Pool(), `drop table audit_results`) },
		"a table is locked": func(t *testing.T, db *postgres.DB) {
			t.Helper()
			testdb.Begin(t, db.Pool(), `lock table inbox in access exclusive mode`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t)
			m, log := figures(db)
			trouble(t, db)
			for range 2 {
				got := scrape(t, m.Handler())
				want(t, got, map[string]float64{`payonce_figures_up`: 0, `payonce_deliveries_total`: 1})
				if _, shown := got[`payonce_inbox_oldest_age_seconds{receiver="fulfillment"}`]; shown {
					t.Error("half of the figures are shown")
				}
			}
			if n := strings.Count(log.String(), "metrics could not be read"); n != 1 {
				t.Errorf("logged %d times:\n%s", n, log)
			}
		})
	}
}
