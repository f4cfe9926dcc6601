package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// API has the metrics of the api. Its methods may be called concurrently.
type API struct {
	*registry

	requests, keys, commits, events *prometheus.CounterVec
	took, lookup                    *prometheus.HistogramVec
}

// NewAPI makes them. keys are what an idempotency key may lead to, commits the results of
// a commit.
func NewAPI(c Config, keys, commits []string) *API {
	r := newRegistry(c)
	return &API{
		registry: r,
		requests: r.counter("payonce_http_requests_total",
			"Requests that were answered, by route, method and status code.", label{name: "route"}, label{name: "method"}, label{name: "status"}),
		took: r.histogram("payonce_http_request_duration_seconds",
			"Time from the request's headers to the end of the answer, by route.", statementBuckets, label{name: "route"}),
		keys: r.counter("payonce_idempotency_requests_total",
			"Requests with an idempotency key, by what the key led to.", label{"result", keys}),
		commits: r.counter("payonce_idempotency_commits_total",
			"Commits of requests, by result. A request may need several.", label{"result", commits}),
		events: r.counter("payonce_webhook_events_total",
			"Events of the provider that concern us, by whether they were known.", label{"result", receptions}),
		lookup: r.histogram("payonce_idempotency_lookup_duration_seconds",
			"Time for which the store was asked for a key: what idempotency adds to a request at most.", statementBuckets),
	}
}

// Answered counts a request. key is "" where there was none.
func (a *API) Answered(method, route string, status int, took time.Duration, key string) {
	if route == "" {
		route = "none"
	}
	a.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	a.took.WithLabelValues(route).Observe(took.Seconds())
	if key != "" {
		a.keys.WithLabelValues(key).Inc()
	}
}

// Looking times a read of the stored keys.
func (a *API) Looking() (looked func()) { return a.time(a.lookup.WithLabelValues()) }

// Committed counts a commit.
func (a *API) Committed(result string) { a.commits.WithLabelValues(result).Inc() }

// Event counts events of the provider, by what became of them.
func (a *API) Event(kept, duplicates, aside int) { count(a.events, kept, duplicates, aside) }

// receptions are what may become of a message that is received.
var receptions = []string{"first", "duplicate", "quarantined"}

func count(c *prometheus.CounterVec, kept, duplicates, aside int) {
	for i, n := range []int{kept, duplicates, aside} {
		c.WithLabelValues(receptions[i]).Add(float64(n))
	}
}
