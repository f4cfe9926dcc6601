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

// TestMetricsAreExact compares what two apis and two workers have counted of a
// known load, added up, with the tables and with the provider's books; and an api
// that is restarted begins at nought.
func TestMetricsAreExact(t *testing.T) {
	t.Parallel()
	long(t)
	w := newWorld(t, setup{apis: 2, workers: 2, alone: true})
	const n, times = 6, 3
	extra := 0 // sendings that were not answered, which may have been counted
	for i := range n {
		o := newOrder(visa)
		if i == 0 {
			o = newOrder(cardDeclined)
		}
		key := "key-" + unique()
		for range times {
			_, retries, err := w.client.insist(t.Context(), request{key: key, body: o.body(t)})
			if err != nil {
				t.Fatal(err)
			}
			extra += retries
		}
	}
	w.calm(t)
	if extra > 0 {
		t.Skipf("not run: %d requests were not answered at once, on a machine that is busy", extra)
	}
	sum := func(of []*fleet.Process) map[string]float64 {
		all := map[string]float64{}
		for _, p := range of {
			for name, value := range metrics(t, p) {
				all[name] += value
			}
		}
		return all
	}
	apis, workers := sum(w.apis), sum(w.workers)
	const received = `
select count(*)::float8
  from inbox`
	books := w.books(t)
	for _, c := range []struct {
		told, want float64
		name       string
	}{
		{apis[`payonce_idempotency_requests_total{result="first"}`], n, "first requests"},
		{apis[`payonce_idempotency_requests_total{result="replayed"}`], n * (times - 1), "replays"},
		{apis[`payonce_idempotency_commits_total{result="made"}`], n, "commits"},
		{apis[`payonce_idempotency_lookup_duration_seconds_count`], n * times, "look-ups"},
		{apis[`payonce_http_requests_total{method="POST",route="/v1/charges",status="202"}`], n * times, "answers"},
		{workers[`payonce_outbox_deliveries_total{result="first"}`], row[float64](t, w, received), "messages received"},
		{workers[`payonce_outbox_deliveries_total{result="first"}`], 2 * n, "messages of the load"},
		{workers[`payonce_inbox_messages_processed_total{receiver="fulfillment",result="done"}`], n, "charges carried"},
		{workers[`payonce_inbox_messages_processed_total{receiver="notification",result="done"}`], n, "merchants told"},
		{workers[`payonce_provider_requests_total{call="POST payment_intents/id/confirm",result="ok"}`], float64(len(books.Captures)), "confirmations"},
		{workers[`payonce_provider_requests_total{call="POST payment_intents/id/confirm",result="refused"}`], 1, "declined ones"},
		{workers[`payonce_provider_requests_total{call="POST payment_intents",result="ok"}`], float64(len(books.Intents)), "intents made"},
	} {
		if c.told != c.want {
			t.Errorf("%s: %v were told, there are %v", c.name, c.told, c.want)
		}
	}
	stop(t, w.apis[0])
	restart(t, w.apis[0])
	if told := metrics(t, w.apis[0])[`payonce_idempotency_requests_total{result="first"}`]; told != 0 {
		t.Errorf("an api that was restarted tells of %v first requests", told)
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
