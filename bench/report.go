package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// sample is what one measurement came to. All but the rate and the latencies are for each
// charge or request, and at rest for each second.
type sample struct {
	perSecond, p50, p99             float64 // latencies in milliseconds
	transactions, flushes, walBytes float64
	programCPU, databaseCPU         float64 // milliseconds
}

// newSample divides. Processor time is that of the window, and the server's counters are
// those of all that was done, warm-up included.
func newSample(w window, c counters, total int) sample {
	done, all := float64(w.done), float64(total)
	s := sample{p50: 1000 * w.p50.Seconds(), p99: 1000 * w.p99.Seconds()}
	if w.atRest != (counters{}) {
		c, done, all = w.atRest, w.seconds, w.seconds
	} else {
		s.perSecond = done / w.seconds
	}
	if done > 0 {
		s.programCPU, s.databaseCPU = 1000*w.used.programs.Seconds()/done, 1000*w.used.database.Seconds()/done
	}
	if all > 0 {
		s.transactions, s.flushes, s.walBytes = float64(c.Transactions)/all, float64(c.Flushes)/all, float64(c.WALBytes)/all
	}
	return s
}

// columns are the values of a sample: what people read, and the unit for benchstat.
var columns = []struct {
	title, unit, format string
	of                  func(sample) float64
}{
	{"/s", "/s", "%.0f", rate},
	{"p50 ms", "p50-ms", "%.1f", func(s sample) float64 { return s.p50 }},
	{"p99 ms", "p99-ms", "%.1f", func(s sample) float64 { return s.p99 }},
	{"transactions", "transactions/op", "%.2f", func(s sample) float64 { return s.transactions }},
	{"flushes", "flushes/op", "%.2f", func(s sample) float64 { return s.flushes }},
	{"WAL B", "WAL-B/op", "%.0f", func(s sample) float64 { return s.walBytes }},
	{"programs ms", "programs-ms/op", "%.2f", func(s sample) float64 { return s.programCPU }},
	{"PostgreSQL ms", "PostgreSQL-ms/op", "%.2f", func(s sample) float64 { return s.databaseCPU }},
}

func rate(s sample) float64 { return s.perSecond }
func cpu(s sample) float64  { return s.programCPU + s.databaseCPU }

// report has the samples of each setting, in the order in which they were measured.
type report struct {
	order   []setting
	samples map[setting][]sample
}

func (r *report) add(s setting, taken sample) {
	if r.samples == nil {
		r.samples = map[setting][]sample{}
	}
	if r.samples[s] == nil {
		r.order = append(r.order, s)
	}
	r.samples[s] = append(r.samples[s], taken)
}

// median is the middle of some values, or the mean of the two in the middle.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// over divides a value by that of another program in the same round, so that a machine that
// drifts does so under both, and returns the median with the least and the greatest; "" if
// there is nothing to divide by.
func (r report) over(s setting, by string, of func(sample) float64) string {
	other := s
	other.by = by
	var ratios []float64
	for round, taken := range r.samples[s] {
		if others := r.samples[other]; by != s.by && round < len(others) && of(others[round]) > 0 {
			ratios = append(ratios, of(taken)/of(others[round]))
		}
	}
	if len(ratios) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", median(ratios), slices.Min(ratios), slices.Max(ratios))
}

// table writes the medians of all rounds, and the ratios.
func (r report) table(w io.Writer) error {
	rivals := slices.DeleteFunc([]string{byBase, byRiver}, func(by string) bool {
		return !slices.ContainsFunc(r.order, func(s setting) bool { return s.by == by })
	})
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range columns {
		fmt.Fprint(table, "\t", c.title)
	}
	for _, by := range rivals {
		fmt.Fprintf(table, "\t/s ÷ %s\tprocessor ÷ %s", by, by)
	}
	fmt.Fprintln(table, "\t")
	for _, s := range r.order {
		fmt.Fprint(table, s)
		for _, c := range columns {
			values := make([]float64, len(r.samples[s]))
			for i, taken := range r.samples[s] {
				values[i] = c.of(taken)
			}
			fmt.Fprintf(table, "\t"+c.format, median(values))
		}
		for _, by := range rivals {
			fmt.Fprint(table, "\t", r.over(s, by, rate), "\t", r.over(s, by, cpu))
		}
		fmt.Fprintln(table, "\t")
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	for _, done := range works {
		fmt.Fprintf(w, "%-8s %s\n", done.name, done.what)
	}
	return nil
}

// benchstat is every round in the format of Go's benchmarks.
func (r report) benchstat() string {
	var text strings.Builder
	fmt.Fprintf(&text, "goos: %s\ngoarch: %s\npkg: github.com/payonce/payonce/bench\n", runtime.GOOS, runtime.GOARCH)
	for _, s := range r.order {
		for _, taken := range r.samples[s] {
			name := s.String()
			fmt.Fprintf(&text, "Benchmark%s%s 1", strings.ToUpper(name[:1]), name[1:])
			for _, c := range columns {
				fmt.Fprintf(&text, " %g %s", c.of(taken), c.unit)
			}
			fmt.Fprintln(&text)
		}
	}
	return text.String()
}
