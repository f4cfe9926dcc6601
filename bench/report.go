package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
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

// line is a sample in the format of Go's benchmarks, which benchstat reads.
func (s sample) line(of setting) string {
	name := of.String()
	return fmt.Sprintf("Benchmark%s%s 1 %g /s %g p50-ms %g p99-ms %g transactions/op %g flushes/op %g WAL-B/op "+
		"%g programs-ms/op %g PostgreSQL-ms/op", strings.ToUpper(name[:1]), name[1:],
		s.perSecond, s.p50, s.p99, s.transactions, s.flushes, s.walBytes, s.programCPU, s.databaseCPU)
}

// measure measures all of the plan once in each round, so that a machine that drifts does so under all of
// it alike, and writes each sample.
func (b *bench) measure(ctx context.Context, w io.Writer, plan []setting, rounds int) error {
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
