package telemetry

import (
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/payonce/payonce/internal/postgres"
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
}

// NewRegistry returns a registry with metrics of the process. now is the clock by which
// what the database knows is read again.
func NewRegistry(log *slog.Logger, now func() time.Time) *Registry {
	all := prometheus.NewRegistry()
	all.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return &Registry{
		all: all, now: now, log: log,
		figuresTimeout: figuresTimeout, scrapeTimeout: scrapeTimeout,
	}
}

// Metric describes a metric: Type is counter, gauge or histogram.
type Metric struct {
	Name, Type, Help string
	Labels           []Label
}

// Metrics describes what was registered, in that order, each name once. Metrics of the
// process are not among it.
func (r *Registry) Metrics() []Metric { return slices.Clone(r.metrics) }

const gauge = "gauge"

// describe notes a metric, and returns the names of its labels.
func (r *Registry) describe(m Metric) (names []string) {
	if !slices.ContainsFunc(r.metrics, func(other Metric) bool { return other.Name == m.Name }) {
		r.metrics = append(r.metrics, m)
	}
	for _, l := range m.Labels {
		names = append(names, l.Name)
	}
	return names
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
func LabelOf[T ~string](name string, values ...T) Label {
	l := Label{Name: name}
	for _, v := range values {
		l.Values = append(l.Values, string(v))
	}
	return l
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
	c := promauto.With(r.all).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, r.describe(Metric{name, "counter", help, labels}))
	each(labels, func(values ...string) { c.WithLabelValues(values...) })
	return Counter{c}
}

// Add adds n, for a value of each label.
func (c Counter) Add(n int, values ...string) { c.vec.WithLabelValues(values...).Add(float64(n)) }

// Times measures times, apart for each combination of its labels' values.
type Times struct{ vec *prometheus.HistogramVec }

// buckets, in seconds, begin with one statement and end with a call over a network that hangs.
var buckets = []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20}

// Times registers a histogram of times.
func (r *Registry) Times(name, help string, labels ...Label) Times {
	h := promauto.With(r.all).NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, r.describe(Metric{name, "histogram", help, labels}))
	each(labels, func(values ...string) { h.WithLabelValues(values...) })
	return Times{h}
}

// Observe adds a time, for a value of each label.
func (t Times) Observe(took time.Duration, values ...string) {
	t.vec.WithLabelValues(values...).Observe(took.Seconds())
}

// Time measures the time until done is called.
func (t Times) Time(values ...string) (done func()) {
	timer := prometheus.NewTimer(t.vec.WithLabelValues(values...))
	return func() { timer.ObserveDuration() }
}

// read registers a gauge or a counter that is read at each scrape. Each label has one value.
func (r *Registry) read(kind, name, help string, value func() float64, labels ...Label) {
	var described []Label
	constant := prometheus.Labels{}
	for _, l := range labels {
		constant[l.Name] = l.Values[0]
		described = append(described, Label{Name: l.Name})
	}
	r.describe(Metric{name, kind, help, described})
	if kind == gauge {
		promauto.With(r.all).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: constant}, value)
	} else {
		promauto.With(r.all).NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: constant}, value)
	}
}

// Database adds what the program itself knows of its database: the connections of its pool, its
// group commits, and the newest timeline that it has seen. It is called at most once.
func (r *Registry) Database(db *postgres.DB) {
	stat, commits := db.Pool().Stat, db.Committer().Stats
	const connections = "Connections to the database. state: in_use or idle."
	pool := LabelOf("pool", "main")
	r.read(gauge, "payonce_db_connections", connections, func() float64 { return float64(stat().AcquiredConns()) }, pool, LabelOf("state", "in_use"))
	r.read(gauge, "payonce_db_connections", connections, func() float64 { return float64(stat().IdleConns()) }, pool, LabelOf("state", "idle"))
	r.read(gauge, "payonce_db_connections_max", "Largest number of connections of the pool.", func() float64 { return float64(stat().MaxConns()) }, pool)
	r.read(gauge, "payonce_db_timeline", "Newest timeline of the database's servers that the program has seen. A promotion begins a new one.",
		func() float64 { return float64(db.Timeline()) })
	r.read("counter", "payonce_shared_commits_total", "Group commits of several decisions.", func() float64 { return float64(commits().Commits) })
	r.read("counter", "payonce_shared_commit_decisions_total", "Decisions that were committed in group commits.", func() float64 { return float64(commits().Batches) })
	r.read(gauge, "payonce_late_commits", "Commits in flight of which the database has confirmed none for three seconds: its synchronous standby is away, it hangs, or they wait for a lock.",
		func() float64 { return float64(commits().Late) })
}

// Circuit adds the state of the circuit breaker before the provider. It is called at most once.
func (r *Registry) Circuit(states []string, now func() string) {
	for _, state := range states {
		r.read(gauge, "payonce_provider_circuit", "1 for the state of the circuit breaker before the provider, 0 for the others. open: no request is sent. half-open: one at a time.",
			func() float64 { return number(now() == state) }, LabelOf("state", state))
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
