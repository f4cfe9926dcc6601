package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/payonce/payonce/internal/postgres"
)

// shared tells what was committed in company.
type shared struct {
	read                     func() postgres.Shared
	commits, units, refusals *prometheus.Desc
}

func newShared(read func() postgres.Shared) *shared {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return &shared{
		read:     read,
		commits:  desc("payonce_shared_commits_total", "Commits that several decisions shared."),
		units:    desc("payonce_shared_commit_decisions_total", "Decisions that were committed in company."),
		refusals: desc("payonce_shared_commit_refusals_total", "Commits that were refused and tried in smaller company."),
	}
}

// Describe tells which metrics there are.
func (s *shared) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.commits, s.units, s.refusals} {
		to <- d
	}
}

// Collect tells what they are now.
func (s *shared) Collect(to chan<- prometheus.Metric) {
	now := s.read()
	for d, n := range map[*prometheus.Desc]int64{s.commits: now.Commits, s.units: now.Units, s.refusals: now.Refusals} {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
}
