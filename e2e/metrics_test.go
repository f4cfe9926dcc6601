package e2e_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/fleet"
)

// TestMetrics: what the programs tell of themselves is what they did, and the
// audit's result is told by whoever did not audit.
func TestMetrics(t *testing.T) {
	t.Parallel()
	long(t)
	w := newWorld(t, setup{apis: 1, workers: 1})
	key := "key-" + unique()
	o := newOrder(visa)
	for range 3 {
		if _, _, err := w.client.insist(t.Context(), request{key: key, body: o.body(t)}); err != nil {
			t.Fatal(err)
		}
	}
	w.carry(t, newOrder(visa))
	w.calm(t)
	api := metrics(t, w.apis[0])
	for name, least := range map[string]float64{
		`payonce_idempotency_requests_total{result="first"}`:                          2,
		`payonce_idempotency_requests_total{result="replayed"}`:                       2,
		`payonce_idempotency_lookup_duration_seconds_count`:                           4,
		`payonce_http_requests_total{method="POST",route="/v1/charges",status="202"}`: 4,
		`payonce_db_connections_max{pool="main"}`:                                     1,
		`payonce_http_request_duration_seconds_count{route="/v1/charges"}`:            4,
		`process_resident_memory_bytes`:                                               1,
	} {
		if api[name] < least {
			t.Errorf("the api tells that %s is %v, want at least %v", name, api[name], least)
		}
	}

	w.payonce(t, "audit")
	var worker map[string]float64
	eventually(t, "the audit is told", func() bool {
		worker = metrics(t, w.workers[0])
		return worker[`payonce_audit_checked{scope="tables"}`] > 0
	})
	for name, least := range map[string]float64{
		`payonce_outbox_deliveries_total{result="first"}`:                                         4,
		`payonce_inbox_messages_processed_total{receiver="fulfillment",result="done"}`:            2,
		`payonce_inbox_messages_processed_total{receiver="notification",result="done"}`:           2,
		`payonce_inbox_handler_duration_seconds_count{receiver="fulfillment"}`:                    2,
		`payonce_step_duration_seconds_count{step="payment"}`:                                     4,
		`payonce_provider_requests_total{call="POST payment_intents",result="ok"}`:                2,
		`payonce_provider_request_duration_seconds_count{call="POST payment_intents/id/confirm"}`: 2,
		`payonce_store_bytes{table="inbox"}`:                                                      1,
		`payonce_figures_up`:                                                                      1,
		`payonce_audit_finished_timestamp_seconds{scope="tables"}`:                                1,
	} {
		if worker[name] < least {
			t.Errorf("the worker tells that %s is %v, want at least %v", name, worker[name], least)
		}
	}
	for _, name := range []string{
		`payonce_inbox_messages{receiver="fulfillment",status="dead"}`,
		`payonce_audit_violations{scope="tables"}`,
	} {
		if v, told := worker[name]; v != 0 || !told {
			t.Errorf("the worker tells that %s is %v (%t), want 0", name, v, told)
		}
	}
}

// metrics are what a program tells of itself, to whoever asks.
func metrics(t *testing.T, p *fleet.Process) map[string]float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startPatience)
	defer cancel()
	c := newClient([]string{p.URL()}, "")
	c.merchant = strings.HasPrefix(p.Name(), "api") // the contract is the api's
	got, err := c.do(ctx, request{method: http.MethodGet, path: "/metrics", header: http.Header{"Authorization": nil}})
	if err != nil || got.Status != http.StatusOK {
		t.Fatalf("/metrics of %s: %v, %d %s", p.Name(), err, got.Status, got.Body)
	}
	found := map[string]float64{}
	for line := range strings.Lines(string(got.Body)) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		found[line[:at]] = value
	}
	return found
}
