package telemetry

import (
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/time/rate"

	"github.com/payonce/payonce/internal/postgres"
)

const scrapesAtOnce = 4 // more are refused

// Registry has the metrics of one program. What its methods return may be used concurrently.
type Registry struct {
	all *prometheus.Registry
	log *slog.Logger

	metrics []Metric
	figures func() // reads what the database alone knows
	seldom  rate.Sometimes
	scrape  sync.Mutex // no scrape shows figures while another one reads them
}

// NewRegistry returns a registry with metrics of the process.
func NewRegistry(log *slog.Logger) *Registry {
	all := prometheus.NewRegistry()
	all.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return &Registry{all: all, log: log, figures: func() {}, seldom: rate.Sometimes{Interval: figuresFor}}
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

// Gather returns all metrics. It implements an interface of Prometheus.
func (r *Registry) Gather() ([]*dto.MetricFamily, error) {
	r.scrape.Lock()
	defer r.scrape.Unlock()
	r.seldom.Do(r.figures)
	return r.all.Gather()
}

// Handler serves the metrics in the formats of Prometheus, OpenMetrics among them.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(r.log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError,
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: scrapesAtOnce,
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

// Time measures the time until done is called, for a value of each label.
func (t Times) Time(values ...string) (done func()) {
	timer := prometheus.NewTimer(t.vec.WithLabelValues(values...))
	return func() { timer.ObserveDuration() }
}

// read registers a gauge that is read at each scrape, for one value of each label.
func (r *Registry) read(name, help string, value func() float64, labels prometheus.Labels) {
	m := Metric{Name: name, Type: gauge, Help: help}
	for _, l := range slices.Sorted(maps.Keys(labels)) {
		m.Labels = append(m.Labels, Label{Name: l})
	}
	r.describe(m)
	promauto.With(r.all).NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
}

// Database adds what the program itself knows of its database: the connections of its pool, its late
// commits, and the newest timeline that it has seen. It is called at most once.
func (r *Registry) Database(db *postgres.DB) {
	stat := db.Pool().Stat
	const connections = "Connections to the database. state: in_use or idle."
	r.read("payonce_db_connections", connections, func() float64 { return float64(stat().AcquiredConns()) }, prometheus.Labels{"pool": "main", "state": "in_use"})
	r.read("payonce_db_connections", connections, func() float64 { return float64(stat().IdleConns()) }, prometheus.Labels{"pool": "main", "state": "idle"})
	r.read("payonce_db_connections_max", "Largest number of connections of the pool.", func() float64 { return float64(stat().MaxConns()) }, prometheus.Labels{"pool": "main"})
	r.read("payonce_db_timeline", "Newest timeline of the database's servers that the program has seen. A promotion begins a new one.",
		func() float64 { return float64(db.Timeline()) }, nil)
	r.read("payonce_late_commits", "Commits in flight of which the database has confirmed none for three seconds: its synchronous standby is away, it hangs, or they wait for a lock.",
		func() float64 { return float64(db.Committer().Stats().Late) }, nil)
}

// Circuit adds the state of the circuit breaker before the provider. It is called at most once.
func (r *Registry) Circuit(states []string, now func() string) {
	for _, state := range states {
		r.read("payonce_provider_circuit", "1 for the state of the circuit breaker before the provider, 0 for the others. open: no request is sent. half-open: one at a time.",
			func() float64 { return number(now() == state) }, prometheus.Labels{"state": state})
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
