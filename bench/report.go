package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// sample is what one measurement came to: how often in a second, latencies in milliseconds, and the
// rest for each charge or request, and at rest for each second.
type sample struct {
	perSecond, p50, p99             float64
	transactions, flushes, walBytes float64
	programCPU, databaseCPU         float64 // milliseconds
}

// newSample divides. Processor time is that of the window, and the server's counters are
// those of all that was done, warm-up included.
func newSample(w window, c counters, total int) sample {
	done, all := float64(w.done), float64(total)
	s := sample{p50: 1000 * w.p50.Seconds(), p99: 1000 * w.p99.Seconds()}
	if total == 0 { // at rest
		c, done, all = w.counted, w.seconds, w.seconds
	} else {
		s.perSecond = done / w.seconds
	}
	if done > 0 {
		s.programCPU, s.databaseCPU = 1000*w.used.programs.Seconds()/done, 1000*w.used.database.Seconds()/done
	}
	s.transactions, s.flushes, s.walBytes = float64(c.Transactions)/all, float64(c.Flushes)/all, float64(c.WALBytes)/all
	return s
}

// columns are the values of a sample: the unit, and the format of the table.
var columns = []struct {
	unit, format string
	of           func(sample) float64
}{
	{"/s", "%.0f", rate},
	{"p50-ms", "%.1f", func(s sample) float64 { return s.p50 }},
	{"p99-ms", "%.1f", func(s sample) float64 { return s.p99 }},
	{"transactions/op", "%.2f", func(s sample) float64 { return s.transactions }},
	{"flushes/op", "%.2f", func(s sample) float64 { return s.flushes }},
	{"WAL-B/op", "%.0f", func(s sample) float64 { return s.walBytes }},
	{"programs-ms/op", "%.2f", func(s sample) float64 { return s.programCPU }},
	{"PostgreSQL-ms/op", "%.2f", func(s sample) float64 { return s.databaseCPU }},
}

func rate(s sample) float64      { return s.perSecond }
func processor(s sample) float64 { return s.programCPU + s.databaseCPU }

// line is a sample in the format of Go's benchmarks, which benchstat reads.
func (s sample) line(of setting) string {
	name, line := of.String(), strings.Builder{}
	fmt.Fprintf(&line, "Benchmark%s%s 1", strings.ToUpper(name[:1]), name[1:])
	for _, c := range columns {
		fmt.Fprintf(&line, " %g %s", c.of(s), c.unit)
	}
	return line.String()
}

// report has the samples of each setting, by rounds.
type report map[setting][]sample

// over divides by what another program had in the same round, so that a machine that drifts does so under
// both. It returns the median with the least and the greatest; "" if there is nothing to divide by.
func (r report) over(s setting, by string, of func(sample) float64) string {
	var ratios []float64
	others := r[setting{s.work, by, s.inFlight}]
	for round, taken := range r[s] {
		if by != s.by && round < len(others) && of(others[round]) > 0 {
			ratios = append(ratios, of(taken)/of(others[round]))
		}
	}
	if len(ratios) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", median(ratios), slices.Min(ratios), slices.Max(ratios))
}

// table writes the medians of all rounds, and the ratios.
func (r report) table(w io.Writer, plan []setting) error {
	rivals := []string{byBase, byRiver}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range columns {
		fmt.Fprint(out, "\t", c.unit)
	}
	for _, by := range rivals {
		fmt.Fprintf(out, "\t/s ÷ %s\tprocessor ÷ %s", by, by)
	}
	fmt.Fprintln(out, "\t")
	for _, s := range plan {
		if len(r[s]) == 0 {
			continue // it was not measured
		}
		fmt.Fprint(out, s)
		for _, c := range columns {
			var values []float64
			for _, taken := range r[s] {
				values = append(values, c.of(taken))
			}
			fmt.Fprintf(out, "\t"+c.format, median(values))
		}
		for _, by := range rivals {
			fmt.Fprint(out, "\t", r.over(s, by, rate), "\t", r.over(s, by, processor))
		}
		fmt.Fprintln(out, "\t")
	}
	return out.Flush()
}

// median is the middle of some values, or the mean of the two in the middle.
func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// measure measures all of the plan once in each round, so that a machine that drifts does so under all of
// it alike. It writes each sample, and at the end the table, where something failed too.
func (b *bench) measure(ctx context.Context, w io.Writer, plan []setting, rounds int) (err error) {
	taken := report{}
	defer func() { err = errors.Join(err, taken.table(w, plan)) }()
	for round := range max(1, rounds) {
		for _, s := range plan {
			fmt.Fprintf(b.say, "round %d: %s\n", round+1, s)
			sample, err := b.measureOne(ctx, s)
			if cleaned := b.cleanUp(ctx); err == nil {
				err = cleaned
			}
			if err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
			fmt.Fprintln(w, sample.line(s))
			taken[s] = append(taken[s], sample)
		}
	}
	return nil
}

// heading says what is measured, and where, as Go's benchmarks do.
func (c runCmd) heading(ctx context.Context, version string) string {
	text := fmt.Sprintf("%d processors, %s, PostgreSQL %s with fsync, commit %s", runtime.NumCPU(), runtime.Version(), version, commit(ctx, ".."))
	if c.Base != "" {
		text += ", base " + commit(ctx, c.Base)
	}
	return fmt.Sprintf("%s\ngoos: %s\ngoarch: %s\npkg: github.com/payonce/payonce/bench", text, runtime.GOOS, runtime.GOARCH)
}

// commit is a tree's commit, with "-dirty" behind it if something was changed since; ""
// where there is no git.
func commit(ctx context.Context, tree string) string {
	name, _ := exec.CommandContext(ctx, "git", "-C", tree, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	return strings.TrimSpace(string(name))
}
