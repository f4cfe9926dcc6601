package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Report is everything that a run has measured.
type Report struct {
	Machine Machine  `json:"machine"`
	Commit  string   `json:"commit"` // "" where there is no git
	Quick   bool     `json:"quick"`  // then no figure means anything
	Figures []Figure `json:"figures"`
}

// Figure is what one subject came to in each round.
type Figure struct {
	Name    string   `json:"name"`
	What    string   `json:"what"`
	Rival   string   `json:"rival,omitempty"`
	Samples []Sample `json:"samples"`
}

func (r *Report) add(s subject, sample Sample) {
	at := slices.IndexFunc(r.Figures, func(f Figure) bool { return f.Name == s.name })
	if at < 0 {
		at = len(r.Figures)
		r.Figures = append(r.Figures, Figure{Name: s.name, What: s.what, Rival: s.rival})
	}
	r.Figures[at].Samples = append(r.Figures[at].Samples, sample)
}

func (r Report) figure(name string) (Figure, bool) {
	at := slices.IndexFunc(r.Figures, func(f Figure) bool { return f.Name == name })
	if at < 0 {
		return Figure{}, false
	}
	return r.Figures[at], true
}

// spread is the middle of some values, the least and the greatest.
type spread struct{ median, least, most float64 }

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	values = slices.Sorted(slices.Values(values))
	middle := len(values) / 2
	median := values[middle]
	if len(values)%2 == 0 {
		median = (values[middle-1] + median) / 2
	}
	return spread{median: median, least: values[0], most: values[len(values)-1]}
}

// of is the spread of one value over all rounds.
func (f Figure) of(value func(Sample) float64) spread {
	values := make([]float64, len(f.Samples))
	for i, s := range f.Samples {
		values[i] = value(s)
	}
	return spreadOf(values)
}

func perSecond(s Sample) float64 { return s.PerSecond }

// toUnit is the rate in pgbench's inserts of the same minute.
func toUnit(s Sample) float64 {
	if s.Unit == 0 {
		return 0
	}
	return s.PerSecond / s.Unit
}

// toRival is the rate in that of the rival, round by round.
func (r Report) toRival(f Figure) spread {
	rival, measured := r.figure(f.Rival)
	if !measured {
		return spread{}
	}
	var ratios []float64
	for i, s := range f.Samples {
		if i < len(rival.Samples) && rival.Samples[i].PerSecond > 0 {
			ratios = append(ratios, s.PerSecond/rival.Samples[i].PerSecond)
		}
	}
	return spreadOf(ratios)
}

// writeTable writes the medians, with the spread of rates and ratios.
func (r Report) writeTable(w io.Writer) error {
	m := r.Machine
	fmt.Fprintf(w, "%d processors, %s, %s, PostgreSQL %s with fsync, commit %s; the unit is a single-row insert at %d clients (%s)\n",
		m.Processors, m.System, m.Go, m.PostgreSQL, r.Commit, unitClients, m.Unit)
	if r.Quick {
		fmt.Fprintln(w, "quick: everything was done once; the figures mean nothing")
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\t/s\t(spread)\t× pgbench\t(spread)\t× rival\trival\tp50 ms\tp99 ms\twrites\tall\tflushes\tlog B\tCPU ms\tof PostgreSQL\t")
	for _, f := range r.Figures {
		rate, unit, rival := f.of(perSecond), f.of(toUnit), r.toRival(f)
		median := func(value func(Sample) float64) float64 { return f.of(value).median }
		fmt.Fprintf(table, "%s\t%.0f\t%.0f–%.0f\t%.3f\t%.3f–%.3f\t%s\t%s\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%.0f\t%.2f\t%.2f\t\n",
			f.Name, rate.median, rate.least, rate.most, unit.median, unit.least, unit.most, ratio(rival), f.Rival,
			median(func(s Sample) float64 { return s.P50 }), median(func(s Sample) float64 { return s.P99 }),
			median(func(s Sample) float64 { return s.Writes }), median(func(s Sample) float64 { return s.Transactions }),
			median(func(s Sample) float64 { return s.Flushes }), median(func(s Sample) float64 { return s.LogBytes }),
			median(func(s Sample) float64 { return s.ProgramCPU }), median(func(s Sample) float64 { return s.DatabaseCPU }))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	fmt.Fprintln(w, "writes, all, flushes, log: transactions that wrote, all transactions, flushes and bytes of the log, for each that was done;")
	fmt.Fprintln(w, "CPU: of the programs that carry, and of PostgreSQL, for each; neither holds the load generator or the outside")
	for _, f := range r.Figures {
		fmt.Fprintf(w, "%-20s %s\n", f.Name, f.What)
	}
	return nil
}

func ratio(s spread) string {
	if s.median == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", s.median)
}
