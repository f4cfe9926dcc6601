package telemetry

import (
	"log/slog"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/payonce/payonce/internal/postgres"
)

const scrapesAtOnce = 4 // more are refused

// Registry has the metrics of one program. What its methods return may be used concurrently.
type Registry struct {
	all     *prometheus.Registry
	log     *slog.Logger
	metrics []Metric
}

// NewRegistry returns a registry with metrics of the process.
func NewRegistry(log *slog.Logger) *Registry {
	all := prometheus.NewRegistry()
	all.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return &Registry{all: all, log: log}
}

// Metric describes a metric: Type is counter, gauge or histogram.
type Metric struct {
	Name, Type, Help string
	Labels           []Label
}

// Metrics describes what was registered, in that order. Metrics of the process are not among it.
func (r *Registry) Metrics() []Metric { return slices.Clone(r.metrics) }

const gauge = "gauge"

// describe notes a metric, and returns the names of its labels.
func (r *Registry) describe(m Metric) (names []string) {
	r.metrics = append(r.metrics, m)
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

// show shows a gauge at one scrape, with a value of each label.
type show func(name string, value float64, labels ...string)

// gauges are gauges that read shows at each scrape. It is a collector of Prometheus.
type gauges struct {
	described map[string]*prometheus.Desc
	read      func(show)
}

// Describe sends what describes the gauges.
func (g gauges) Describe(to chan<- *prometheus.Desc) {
	for _, described := range g.described {
		to <- described
	}
}

// Collect sends the gauges.
func (g gauges) Collect(to chan<- prometheus.Metric) {
	g.read(func(name string, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(g.described[name], prometheus.GaugeValue, value, labels...)
	})
}

// gauges registers gauges that read shows at each scrape.
func (r *Registry) gauges(read func(show), all ...Metric) {
	g := gauges{map[string]*prometheus.Desc{}, read}
	for _, m := range all {
		g.described[m.Name] = prometheus.NewDesc(m.Name, m.Help, r.describe(m), nil)
	}
	r.all.MustRegister(g)
}

// Database adds what the program itself knows of its database: the connections of its pool, its late
// commits, and the newest timeline that it has seen. It is called at most once.
func (r *Registry) Database(db *postgres.DB) {
	pool, state := Label{Name: "pool"}, Label{Name: "state"}
	r.gauges(func(show show) {
		stat := db.Pool().Stat()
		show("payonce_db_connections", float64(stat.AcquiredConns()), "main", "in_use")
		show("payonce_db_connections", float64(stat.IdleConns()), "main", "idle")
		show("payonce_db_connections_max", float64(stat.MaxConns()), "main")
		show("payonce_db_timeline", float64(db.Timeline()))
		show("payonce_late_commits", float64(db.Committer().Stats().Late))
	},
		Metric{"payonce_db_connections", gauge, "Connections to the database. state: in_use or idle.", []Label{pool, state}},
		Metric{"payonce_db_connections_max", gauge, "Largest number of connections of the pool.", []Label{pool}},
		Metric{"payonce_db_timeline", gauge, "Newest timeline of the database's servers that the program has seen. A promotion begins a new one.", nil},
		Metric{"payonce_late_commits", gauge, "Commits in flight of which the database has confirmed none for three seconds: its synchronous standby is away, it hangs, or they wait for a lock.", nil})
}
