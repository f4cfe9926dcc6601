package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// API are the metrics of the program that accepts. Its methods are called by
// many at once.
type API struct {
	*registry

	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
	keys     *prometheus.CounterVec
	commits  *prometheus.CounterVec
	events   *prometheus.CounterVec
	lookup   prometheus.Histogram
}

// NewAPI makes them. keys are what an idempotency key may lead to, commits what
// may become of a commit.
func NewAPI(c Config, keys, commits []string) *API {
	r := newRegistry(c)
	a := &API{
		registry: r,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "payonce_http_requests_total",
			Help: "Requests that were answered, by route, method and status code.",
		}, []string{"route", "method", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "payonce_http_request_duration_seconds",
			Help:    "Time from the request's headers to the end of the answer, by route.",
			Buckets: statements(),
		}, []string{"route"}),
		keys: r.counters("payonce_idempotency_requests_total",
			"Requests with an idempotency key, by what the key led to.", "result", keys),
		commits: r.counters("payonce_idempotency_commits_total",
			"Commits of requests, by what became of them. A request may need several.", "result", commits),
		events: r.counters("payonce_webhook_events_total",
			"Events of the provider that concern us, by whether they were known.", "result", receptions()),
		lookup: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "payonce_idempotency_lookup_duration_seconds",
			Help:    "Time for which the store was asked for a key: what idempotency adds to a request at most.",
			Buckets: statements(),
		}),
	}
	r.all.MustRegister(a.requests, a.took, a.lookup)
	return a
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

// Looking times a look at the store of keys.
func (a *API) Looking() (looked func()) { return a.since(a.lookup) }

// Committed counts a commit.
func (a *API) Committed(result string) { a.commits.WithLabelValues(result).Inc() }

// Event counts what became of an event of the provider's.
func (a *API) Event(kept, duplicates, aside int) { count(a.events, kept, duplicates, aside) }

// receptions are what may become of a message that is received.
func receptions() []string { return []string{"first", "duplicate", "quarantined"} }

func count(c *prometheus.CounterVec, kept, duplicates, aside int) {
	for i, n := range []int{kept, duplicates, aside} {
		c.WithLabelValues(receptions()[i]).Add(float64(n))
	}
}
