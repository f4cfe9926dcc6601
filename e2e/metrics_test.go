package e2e_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/robustness/fleet"
)

// TestMetrics_countWhatHappened compares the counters of two apis and two workers
// with the requests, the tables and the provider's records. After a restart they
// start at zero.
func TestMetrics_countWhatHappened(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 2, workers: 2, oneMerchant: true, workerEnv: longLease()})
	const n, times = 6, 2
	d.flowing(t, n, 1, cardDeclined, visa, visa, visa, visa, visa).finish(t, d)
	d.drain(t)
	if retries := d.client.retries.Load(); retries > 0 {
		t.Skipf("not run: %d requests were not answered at once, on a machine that is busy", retries)
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
	apis, workers := sum(d.APIs), sum(d.Workers)
	records := d.records(t)
	for _, c := range []struct {
		got, want float64
		name      string
	}{
		{apis[`payonce_idempotency_requests_total{result="first"}`], n, "first requests"},
		{apis[`payonce_idempotency_requests_total{result="replayed"}`], n * (times - 1), "replays"},
		{apis[`payonce_idempotency_commits_total{result="made"}`], n, "commits"},
		{apis[`payonce_idempotency_lookup_duration_seconds_count`], n * times, "look-ups"},
		{apis[`payonce_http_requests_total{method="POST",route="/v1/charges",status="202"}`], n * times, "answers"},
		{workers[`payonce_outbox_deliveries_total{result="first"}`], row[float64](t, d, `select count(*)::float8 from inbox`), "messages received"},
		{workers[`payonce_outbox_deliveries_total{result="first"}`], 2 * n, "messages of the load"},
		{workers[`payonce_inbox_messages_processed_total{receiver="fulfillment",result="done"}`], n, "charges processed"},
		{workers[`payonce_inbox_messages_processed_total{receiver="notification",result="done"}`], n, "notifications"},
		{workers[`payonce_provider_requests_total{call="POST payment_intents/id/confirm",result="ok"}`], float64(len(records.Captures)), "confirmations"},
		{workers[`payonce_provider_requests_total{call="POST payment_intents/id/confirm",result="refused"}`], 1, "declined ones"},
		{workers[`payonce_provider_requests_total{call="POST payment_intents",result="ok"}`], float64(len(records.Intents)), "intents made"},
	} {
		if c.got != c.want {
			t.Errorf("%s: counted %v, there are %v", c.name, c.got, c.want)
		}
	}
	restart(t, d.APIs[0])
	if n := metrics(t, d.APIs[0])[`payonce_idempotency_requests_total{result="first"}`]; n != 0 {
		t.Errorf("an api that was restarted counts %v first requests", n)
	}
}

// fetch reads a path of a program, without an API key. The answers of an api are held
// to the contract.
func fetch(t *testing.T, p *fleet.Process, path string) answer {
	t.Helper()
	c := newClient([]string{p.URL()}, "")
	c.merchant = strings.HasPrefix(p.Name(), "api")
	got, err := c.do(bounded(t), request{method: http.MethodGet, path: path, header: http.Header{"Authorization": nil}})
	if err != nil {
		t.Fatalf("%s of %s: %v", path, p.Name(), err)
	}
	return got
}

// metrics reads /metrics of a program.
func metrics(t *testing.T, p *fleet.Process) map[string]float64 {
	t.Helper()
	got := fetch(t, p, "/metrics")
	if got.Status != http.StatusOK {
		t.Fatalf("/metrics of %s: %d %s", p.Name(), got.Status, got.Body)
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
