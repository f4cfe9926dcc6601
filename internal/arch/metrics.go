package arch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/telemetry"
)

// Metrics compares a program's section of metrics.md with its registry. The section leaves out
// the metrics and the lists of a label's values that stand above it on the page.
func Metrics(tb testing.TB, program string, r *telemetry.Registry) {
	tb.Helper()
	page, err := os.ReadFile(filepath.Join(folder(), "metrics.md"))
	if err != nil {
		tb.Fatal(err)
	}
	above, _, _ := strings.Cut(string(page), "\n## "+program+"\n")
	listed := make(map[string]bool)
	var rows [][]string
	for _, m := range r.Metrics() {
		if strings.Contains(above, "\n- "+Code(m.Name)+": ") {
			continue
		}
		var labels []string
		for _, l := range m.Labels {
			label := Code(l.Name)
			if list := Code(l.Name) + ": " + Code(strings.Join(l.Values, "`, `")); len(l.Values) > 0 && !listed[list] {
				label, listed[list] = list, true
			}
			labels = append(labels, label)
		}
		kind := m.Type
		if len(labels) > 0 {
			kind += " by " + strings.Join(labels, "; ")
		}
		rows = append(rows, []string{Code(m.Name), kind + ".", m.Help})
	}
	Section(tb, "metrics.md", program, List(rows))
}
