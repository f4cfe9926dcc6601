package telemetry

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// pools tells of pools of connections what they know without a database.
type pools struct {
	of                                  map[string]*pgxpool.Pool
	connections, most, acquires, waited *prometheus.Desc
}

func newPools(of map[string]*pgxpool.Pool) *pools {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"pool"}, labels...), nil)
	}
	return &pools{
		of:          of,
		connections: desc("payonce_db_connections", "Connections to the database, by pool and state.", "state"),
		most:        desc("payonce_db_connections_max", "Connections that a pool may have."),
		acquires:    desc("payonce_db_acquires_total", "Connections that were taken from a pool."),
		waited:      desc("payonce_db_acquire_wait_seconds_total", "Time for which a connection was waited for."),
	}
}

// Describe tells which metrics there are.
func (p *pools) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{p.connections, p.most, p.acquires, p.waited} {
		to <- d
	}
}

// Collect tells what they are now.
func (p *pools) Collect(to chan<- prometheus.Metric) {
	for name, pool := range p.of {
		s := pool.Stat()
		to <- gauge(p.connections, float64(s.AcquiredConns()), name, "in_use")
		to <- gauge(p.connections, float64(s.IdleConns()), name, "idle")
		to <- gauge(p.most, float64(s.MaxConns()), name)
		to <- prometheus.MustNewConstMetric(p.acquires, prometheus.CounterValue, float64(s.AcquireCount()), name)
		to <- prometheus.MustNewConstMetric(p.waited, prometheus.CounterValue, s.AcquireDuration().Seconds(), name)
	}
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}
