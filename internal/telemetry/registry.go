package telemetry

import (
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/payonce/payonce/groupcommit"
)

// Bounds of a scrape.
const (
	scrapesAtOnce = 4 // more are refused
	scrapeTimeout = 8 * time.Second
)

// Registry has the metrics of one program. What its methods return may be used concurrently.
type Registry struct {
	all *prometheus.Registry
	now func() time.Time
	log *slog.Logger

	metrics []Metric

	figuresTimeout, scrapeTimeout time.Duration
	countedAtMost                 int
}

// NewRegistry returns a registry with metrics of the process. now is the clock by which
// what the database knows is read again.
func NewRegistry(log *slog.Logger, now func() time.Time) *Registry {
	r := &Registry{
		all: prometheus.NewRegistry(), now: now, log: log,
		figuresTimeout: figuresTimeout, scrapeTimeout: scrapeTimeout, countedAtMost: countedAtMost,
	}
	r.all.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return r
}

// Metric describes a metric: Type is counter, gauge or histogram.
type Metric struct {
	Name, Type, Help string
	Labels           []Label
}

// Metrics describes what was registered, in that order, each name once. Metrics of the
// process are not among it.
func (r *Registry) Metrics() []Metric { return slices.Clone(r.metrics) }

func (r *Registry) describe(kind, name, help string, labels []Label) {
	if !slices.ContainsFunc(r.metrics, func(m Metric) bool { return m.Name == name }) {
		r.metrics = append(r.metrics, Metric{Name: name, Type: kind, Help: help, Labels: labels})
	}
}

// Handler serves the metrics in the formats of Prometheus, OpenMetrics among them.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.all, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(r.log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError,
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: scrapesAtOnce,
		Timeout:             r.scrapeTimeout,
	})
}

// Label is a label with the values that it can have. A metric exists for each combination
// of them before it counts for the first time. With a label that names no values it exists
// once it has counted.
type Label struct {
	Name   string
	Values []string
}

// LabelOf makes a label of values of any kind of string.
func LabelOf[T ~string](name string, values []T) Label {
	l := Label{Name: name}
	for _, v := range values {
		l.Values = append(l.Values, string(v))
	}
	return l
}

// named makes labels that name no values.
func named(names []string) []Label {
	all := make([]Label, len(names))
	for i, name := range names {
		all[i].Name = name
	}
	return all
}

func names(labels []Label) []string {
	all := make([]string, len(labels))
	for i, l := range labels {
		all[i] = l.Name
	}
	return all
}

// each calls do with each combination of the labels' values that begins with begin.
func each(labels []Label, do func(values ...string), begin ...string) {
	if len(begin) == len(labels) {
		do(begin...)
		return
	}
	for _, value := range labels[len(begin)].Values {
		each(labels, do, append(slices.Clone(begin), value)...)
	}
}

// Counter counts, apart for each combination of its labels' values.
type Counter struct{ vec *prometheus.CounterVec }

// Counter registers a counter.
func (r *Registry) Counter(name, help string, labels ...Label) Counter {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, names(labels))
	each(labels, func(values ...string) { c.WithLabelValues(values...) })
	r.all.MustRegister(c)
	r.describe("counter", name, help, labels)
	return Counter{c}
}

// Add adds n, for a value of each label.
func (c Counter) Add(n int, values ...string) { c.vec.WithLabelValues(values...).Add(float64(n)) }

// Histogram measures times, apart for each combination of its labels' values.
type Histogram struct{ vec *prometheus.HistogramVec }

// StatementTimes registers a histogram of times from those of one statement on.
func (r *Registry) StatementTimes(name, help string, labels ...Label) Histogram {
	return r.histogram(name, help, []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, labels)
}

// CallTimes registers a histogram of times of calls over a network.
func (r *Registry) CallTimes(name, help string, labels ...Label) Histogram {
	return r.histogram(name, help, []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20}, labels)
}

func (r *Registry) histogram(name, help string, seconds []float64, labels []Label) Histogram {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: seconds}, names(labels))
	each(labels, func(values ...string) { h.WithLabelValues(values...) })
	r.all.MustRegister(h)
	r.describe("histogram", name, help, labels)
	return Histogram{h}
}

// Observe adds a time, for a value of each label.
func (h Histogram) Observe(took time.Duration, values ...string) {
	h.vec.WithLabelValues(values...).Observe(took.Seconds())
}

// Time measures the time until done is called.
func (h Histogram) Time(values ...string) (done func()) {
	timer := prometheus.NewTimer(h.vec.WithLabelValues(values...))
	return func() { timer.ObserveDuration() }
}

// gauge registers a gauge that is read at each scrape.
func (r *Registry) gauge(name, help string, labels prometheus.Labels, value func() float64) {
	r.all.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value))
	r.describe("gauge", name, help, named(slices.Sorted(maps.Keys(labels))))
}

// total registers a counter that is read at each scrape.
func (r *Registry) total(name, help string, labels prometheus.Labels, value func() float64) {
	r.all.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, value))
	r.describe("counter", name, help, named(slices.Sorted(maps.Keys(labels))))
}

// Pool adds a connection pool.
func (r *Registry) Pool(name string, pool *pgxpool.Pool) {
	const connections = "Connections to the database. state: in_use or idle."
	of := prometheus.Labels{"pool": name}
	r.gauge("payonce_db_connections", connections, prometheus.Labels{"pool": name, "state": "in_use"},
		func() float64 { return float64(pool.Stat().AcquiredConns()) })
	r.gauge("payonce_db_connections", connections, prometheus.Labels{"pool": name, "state": "idle"},
		func() float64 { return float64(pool.Stat().IdleConns()) })
	r.gauge("payonce_db_connections_max", "Largest number of connections of the pool.", of,
		func() float64 { return float64(pool.Stat().MaxConns()) })
	r.total("payonce_db_acquires_total", "Connections that were acquired from the pool.", of,
		func() float64 { return float64(pool.Stat().AcquireCount()) })
	r.total("payonce_db_acquire_wait_seconds_total", "Time spent waiting for a connection of the pool.", of,
		func() float64 { return pool.Stat().AcquireDuration().Seconds() })
}

// Timeline adds the newest timeline of the database's servers that the program has seen. It is
// called at most once.
func (r *Registry) Timeline(of func() uint64) {
	r.gauge("payonce_db_timeline", "Newest timeline of the database's servers that the program has seen. A promotion begins a new one.", nil,
		func() float64 { return float64(of()) })
}

// CommitStats adds the program's group commits. It is called at most once.
func (r *Registry) CommitStats(of func() groupcommit.Stats) {
	r.total("payonce_shared_commits_total", "Group commits of several decisions.", nil,
		func() float64 { return float64(of().Commits) })
	r.total("payonce_shared_commit_decisions_total", "Decisions that were committed in group commits.", nil,
		func() float64 { return float64(of().Batches) })
	r.total("payonce_shared_commit_refusals_total", "Group commits that were refused: each of their batches was then committed individually.", nil,
		func() float64 { return float64(of().Refusals) })
	r.gauge("payonce_late_commits", "Commits in flight of which the database has confirmed none for three seconds: its synchronous standby is away, it hangs, or they wait for a lock.", nil,
		func() float64 { return float64(of().Late) })
}

// Circuit adds the state of the circuit breaker before the provider. It is called at most once.
func (r *Registry) Circuit(states []string, now func() string) {
	for _, state := range states {
		r.gauge("payonce_provider_circuit", "1 for the state of the circuit breaker before the provider, 0 for the others. open: no request is sent. half-open: one at a time.",
			prometheus.Labels{"state": state}, func() float64 { return number(now() == state) })
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
