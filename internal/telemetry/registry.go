package telemetry

import (
	"cmp"
	"log/slog"
	"net/http"
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

// registry is one program's.
type registry struct {
	all    *prometheus.Registry
	log    *slog.Logger
	now    func() time.Time
	config Config
}

func newRegistry(c Config) *registry {
	r := &registry{all: prometheus.NewRegistry(), log: c.Log, now: c.Now, config: c}
	r.all.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return r
}

// Pools adds the program's pools of connections, by their names. Once at most.
func (r *registry) Pools(of map[string]*pgxpool.Pool) { r.all.MustRegister(newPools(of)) }

// Doorbell adds whether the rings of other processes are heard. Once at most.
func (r *registry) Doorbell(listening func() bool) {
	r.all.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "payonce_doorbell_listening",
		Help: "1 while the rings of other processes are heard, else 0.",
	}, func() float64 {
		if listening() {
			return 1
		}
		return 0
	}))
}

// Shared adds what the program commits in company. Once at most.
func (r *registry) Shared(read func() postgres.Shared) { r.all.MustRegister(newShared(read)) }

// Bounds of a scrape.
const (
	scrapesAtOnce = 4 // more are refused
	scrapeTimeout = 8 * time.Second
)

// Handler serves the metrics in the formats of Prometheus.
func (r *registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.all, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(r.log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapesAtOnce,
		Timeout:             cmp.Or(r.config.scrapeTimeout, scrapeTimeout),
	})
}

// counters registers a counter for each value of one label, so that each is
// there, and 0, before it counts for the first time.
func (r *registry) counters(name, help, label string, values []string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	for _, v := range values {
		c.WithLabelValues(v)
	}
	r.all.MustRegister(c)
	return c
}

// timings registers a histogram for each value of one label.
func (r *registry) timings(name, help, label string, values []string, buckets []float64) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{label})
	for _, v := range values {
		h.WithLabelValues(v)
	}
	r.all.MustRegister(h)
	return h
}

// since times what begins now.
func (r *registry) since(h prometheus.Observer) (done func()) {
	began := r.now()
	return func() { h.Observe(r.now().Sub(began).Seconds()) }
}

// statements are the usual times of a few statements, calls those of a call over
// a network with all that may slow it down. Both in seconds.
func statements() []float64 {
	return []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
}

func calls() []float64 {
	return []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20}
}
