package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
)

// writeTables writes a table for each axis.
func (r Curves) writeTables(w io.Writer) error {
	m := r.Machine
	fmt.Fprintf(w, "%d processors, %s, %s, PostgreSQL %s with fsync, commit %s; the unit is a single-row insert at %d clients (%s)\n",
		m.Processors, m.System, m.Go, m.PostgreSQL, r.Commit, unitClients, m.Unit)
	if r.Quick {
		fmt.Fprintln(w, "quick: everything was done once; the figures mean nothing")
	}
	for _, c := range r.Curves {
		fmt.Fprintf(w, "\n%s: %s\n", c.Axis, c.What)
		if err := c.writeTable(w); err != nil {
			return fmt.Errorf("write the table of %s: %w", c.Axis, err)
		}
	}
	fmt.Fprintln(w, "\n× first: as a multiple of the line's first point. CPU: of the programs and of PostgreSQL, for each charge. log B: bytes of the log for each.")
	fmt.Fprintln(w, "× ideal: of what would be if nothing but the provider took time. MB: of memory, at the start, at the end and at most.")
	return nil
}

func (c Curve) writeTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, c.X+"\t\t/s\t× first\t× pgbench\tp50 ms\tp99 ms\t× first\tCPU ms\tof PostgreSQL\tboth × first\tlog B\t× ideal\tswept\tapi MB\tworker MB\t")
	for _, p := range c.Points {
		if p.Part {
			continue
		}
		first := c.first(p.By)
		fmt.Fprintf(table, "%s\t%s\t%.0f\t%s\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%s\t%s\t%s\t%s\t%s\t%s\t\n",
			strconv.FormatFloat(p.X, 'f', -1, 64), p.By, p.PerSecond, times(rate(p), rate(first)), times(p.PerSecond, p.Unit),
			measuredOr(p.P50, "%.1f"), measuredOr(p.P99, "%.1f"), times(p99(p), p99(first)),
			p.ProgramCPU, p.DatabaseCPU, times(cost(p), cost(first)), measuredOr(p.LogBytes, "%.0f"),
			times(p.PerSecond, p.Ideal), measuredOr(float64(p.Swept), "%.0f"), p.API, p.Worker)
	}
	return table.Flush()
}

// first is the first point of a line.
func (c Curve) first(by string) Point {
	for _, p := range c.Points {
		if p.By == by {
			return p
		}
	}
	return Point{}
}

func times(value, of float64) string {
	if value == 0 || of == 0 {
		return ""
	}
	return fmt.Sprintf("%.3g", value/of)
}

func measuredOr(value float64, format string) string {
	if value == 0 {
		return ""
	}
	return fmt.Sprintf(format, value)
}

// String gives the memory at the start, at the end and at most.
func (r Resident) String() string {
	if r.Peak == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f→%.0f≤%.0f", r.Start, r.End, r.Peak)
}
