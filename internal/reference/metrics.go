package reference

import (
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/telemetry"
)

// Metrics compares a program's section of metrics.md with its registry.
func Metrics(tb testing.TB, program string, r *telemetry.Registry) {
	tb.Helper()
	var rows [][]string
	for _, m := range r.Metrics() {
		var labels []string
		for _, l := range m.Labels {
			label := Code(l.Name)
			if len(l.Values) > 0 {
				label += ": " + Code(strings.Join(l.Values, "`, `"))
			}
			labels = append(labels, label)
		}
		rows = append(rows, []string{Code(m.Name), m.Type, strings.Join(labels, "; "), m.Help})
	}
	Section(tb, "metrics.md", program, Table([]string{"metric", "type", "labels", "what it counts or measures"}, rows))
}
