package telemetry

import (
	"cmp"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/payonce/payonce/internal/postgres"
)

// Config is what the metrics of every program need.
type Config struct {
	Now func() time.Time
	Log *slog.Logger

	// The constants of these names, except in tests.
	figuresTimeout, scrapeTimeout time.Duration
	countedAtMost                 int
}

// registry has the metrics of one program.
type registry struct {
	all    *prometheus.Registry
	config Config
}

func newRegistry(c Config) *registry {
	r := &registry{all: prometheus.NewRegistry(), config: c}
	r.all.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return r
}

// Bounds of a scrape.
const (
	scrapesAtOnce = 4 // more are refused
	scrapeTimeout = 8 * time.Second
)

// Handler serves the metrics in the formats of Prometheus.
func (r *registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.all, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(r.config.Log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapesAtOnce,
		Timeout:             cmp.Or(r.config.scrapeTimeout, scrapeTimeout),
	})
}

// Pools adds the program's connection pools, by name. It is called at most once.
func (r *registry) Pools(of map[string]*pgxpool.Pool) {
	for name, pool := range of {
		stat := func(read func(*pgxpool.Stat) float64) func() float64 {
			return func() float64 { return read(pool.Stat()) }
		}
		const connections, help = "payonce_db_connections", "Connections to the database, by pool and state."
		r.gauge(connections, help, stat(func(s *pgxpool.Stat) float64 { return float64(s.AcquiredConns()) }), "pool", name, "state", "in_use")
		r.gauge(connections, help, stat(func(s *pgxpool.Stat) float64 { return float64(s.IdleConns()) }), "pool", name, "state", "idle")
		r.gauge("payonce_db_connections_max", "Connections that a pool may have.",
			stat(func(s *pgxpool.Stat) float64 { return float64(s.MaxConns()) }), "pool", name)
		r.total("payonce_db_acquires_total", "Connections that were taken from a pool.",
			stat(func(s *pgxpool.Stat) float64 { return float64(s.AcquireCount()) }), "pool", name)
		r.total("payonce_db_acquire_wait_seconds_total", "Time for which a connection was waited for.",
			stat(func(s *pgxpool.Stat) float64 { return s.AcquireDuration().Seconds() }), "pool", name)
	}
}

// Shared adds the program's group commits. It is called at most once.
func (r *registry) Shared(read func() postgres.Shared) {
	r.total("payonce_shared_commits_total", "Group commits of several decisions.",
		func() float64 { return float64(read().Commits) })
	r.total("payonce_shared_commit_decisions_total", "Decisions that were committed in group commits.",
		func() float64 { return float64(read().Units) })
	r.total("payonce_shared_commit_refusals_total", "Group commits that were refused and retried in smaller ones.",
		func() float64 { return float64(read().Refusals) })
}

// Doorbell adds whether the program hears the rings of other processes. It is called at
// most once.
func (r *registry) Doorbell(listening func() bool) {
	r.gauge("payonce_doorbell_listening", "1 while the rings of other processes are heard, else 0.", func() float64 {
		if listening() {
			return 1
		}
		return 0
	})
}

// gauge registers a metric that is read at each scrape. pairs are names and values of its
// labels.
func (r *registry) gauge(name, help string, read func() float64, pairs ...string) {
	r.all.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels(pairs)}, read))
}

func (r *registry) total(name, help string, read func() float64, pairs ...string) {
	r.all.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels(pairs)}, read))
}

func labels(pairs []string) prometheus.Labels {
	return maps.Collect(func(yield func(string, string) bool) {
		for pair := range slices.Chunk(pairs, 2) { //nolint:mnd // name, value
			if !yield(pair[0], pair[1]) {
				return
			}
		}
	})
}

// label is a label with the values that it can have. A metric exists for each of them
// before it counts for the first time. Without values it exists from then on.
type label struct {
	name   string
	values []string
}

func (r *registry) counter(name, help string, labels ...label) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, names(labels))
	for _, values := range combinations(labels) {
		c.WithLabelValues(values...)
	}
	r.all.MustRegister(c)
	return c
}

func (r *registry) histogram(name, help string, buckets []float64, labels ...label) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, names(labels))
	for _, values := range combinations(labels) {
		h.WithLabelValues(values...)
	}
	r.all.MustRegister(h)
	return h
}

func names(labels []label) []string {
	all := make([]string, len(labels))
	for i, l := range labels {
		all[i] = l.name
	}
	return all
}

// combinations has a value of each label.
func combinations(labels []label) [][]string {
	all := [][]string{{}}
	for _, l := range labels {
		var longer [][]string
		for _, values := range all {
			for _, value := range l.values {
				longer = append(longer, append(slices.Clone(values), value))
			}
		}
		all = longer
	}
	return all
}

// time begins to measure, and what it returns ends it.
func (r *registry) time(h prometheus.Observer) (done func()) {
	began := r.config.Now()
	return func() { h.Observe(r.config.Now().Sub(began).Seconds()) }
}

// Buckets, in seconds: of a few statements, and of a call over a network.
var (
	statementBuckets = []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	callBuckets      = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20}
)
