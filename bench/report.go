package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is everything that a run has measured.
type Report struct {
	Machine string    `json:"machine"`
	Commit  string    `json:"commit"`         // "" where there is no git
	Base    string    `json:"base,omitempty"` // the commit of --base
	Date    time.Time `json:"date"`
	Quick   bool      `json:"quick"` // then no figure means anything
	Figures []Figure  `json:"figures"`
}

// Figure is what one subject came to in each round, in one setting.
type Figure struct {
	Name    string   `json:"name"`
	What    string   `json:"what"`
	Rival   string   `json:"rival,omitempty"`
	Setting setting  `json:"setting"`
	Samples []Sample `json:"samples"`
}

// String names the figure in the tables.
func (f Figure) String() string { return strings.TrimSpace(f.Name + " " + f.Setting.String()) }

func (r *Report) add(p planned, sample Sample) {
	f := r.figure(p.subject.name, p.setting)
	if f == nil {
		r.Figures = append(r.Figures, Figure{Name: p.subject.name, What: p.subject.what, Rival: p.subject.rival, Setting: p.setting})
		f = &r.Figures[len(r.Figures)-1]
	}
	f.Samples = append(f.Samples, sample)
}

// figure is nil where the subject was not measured in this setting.
func (r *Report) figure(name string, set setting) *Figure {
	at := slices.IndexFunc(r.Figures, func(f Figure) bool { return f.Name == name && f.Setting == set })
	if at < 0 {
		return nil
	}
	return &r.Figures[at]
}

// comparedWith are the figures that f is divided by: its rival and the base in the
// same setting, and itself in the first setting.
func (r *Report) comparedWith(f Figure) (others []Figure) {
	rivals, base := f.Setting, f.Setting
	rivals.Base, base.Base = false, true
	first := slices.IndexFunc(r.Figures, func(g Figure) bool { return g.Name == f.Name && g.Setting.Base == f.Setting.Base })
	for _, other := range []*Figure{r.figure(f.Rival, rivals), r.figure(f.Name, base), &r.Figures[first]} {
		if other != nil && other.String() != f.String() {
			others = append(others, *other)
		}
	}
	return others
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

// over is the spread of one value divided by that of another figure, round by round.
func (f Figure) over(other Figure, value func(Sample) float64) spread {
	var ratios []float64
	for i, s := range f.Samples {
		if i < len(other.Samples) && value(other.Samples[i]) > 0 {
			ratios = append(ratios, value(s)/value(other.Samples[i]))
		}
	}
	return spreadOf(ratios)
}

func perSecond(s Sample) float64 { return s.PerSecond }

// toUnit is the rate in pgbench's inserts of the same minute.
func toUnit(s Sample) float64 { return s.PerSecond / cmp.Or(s.Unit, math.Inf(1)) }

// column is a value of the tables; compared says that the second table divides it.
type column struct {
	title    string
	format   string
	compared bool
	value    func(Sample) float64
}

var columns = []column{
	{"/s", "%.0f", true, perSecond},
	{"× pgbench", "%.3f", false, toUnit},
	{"× ideal", "%.2f", false, func(s Sample) float64 { return s.PerSecond / cmp.Or(s.Ideal, math.Inf(1)) }},
	{"p50 ms", "%.1f", true, func(s Sample) float64 { return s.P50 }},
	{"p99 ms", "%.1f", true, func(s Sample) float64 { return s.P99 }},
	{"writes", "%.2f", false, func(s Sample) float64 { return s.Writes }},
	{"all", "%.2f", false, func(s Sample) float64 { return s.Transactions }},
	{"flushes", "%.2f", true, func(s Sample) float64 { return s.Flushes }},
	{"log B", "%.0f", false, func(s Sample) float64 { return s.LogBytes }},
	{"statements", "%.2f", true, func(s Sample) float64 { return s.Statements }},
	{"CPU ms", "%.2f", false, func(s Sample) float64 { return s.ProgramCPU }},
	{"of PostgreSQL", "%.2f", false, func(s Sample) float64 { return s.DatabaseCPU }},
	{"CPU of both", "%.2f", true, func(s Sample) float64 { return s.ProgramCPU + s.DatabaseCPU }},
	{"api MB", "%.0f", false, func(s Sample) float64 { return s.API.End }},
	{"worker MB", "%.0f", false, func(s Sample) float64 { return s.Worker.End }},
	{"at most", "%.0f", false, func(s Sample) float64 { return s.Worker.Peak }},
}

// writeTables writes the medians, with the spread of rates, and then the ratios.
func (r Report) writeTables(w io.Writer) error {
	fmt.Fprintf(w, "%s, commit %s; the unit is pgbench's single-row insert at %d clients\n", r.Machine, r.Commit, unitClients)
	if r.Base != "" {
		fmt.Fprintf(w, "base: commit %s\n", r.Base)
	}
	if r.Quick {
		fmt.Fprintln(w, "quick: everything was done once; the figures mean nothing")
	}
	if err := errors.Join(writeFigures(w, r.Figures), r.writeRatios(w)); err != nil {
		return fmt.Errorf("write the tables: %w", err)
	}
	fmt.Fprint(w, `
writes, all, flushes, log, statements: transactions that wrote, all transactions, flushes and bytes of the WAL, statements, for each that was done;
CPU: of the programs, and of PostgreSQL, for each; neither holds the load generator or the provider;
MB: resident memory at the end, and of the worker, or the one program that does both, at most
`)
	for _, s := range subjects {
		if slices.ContainsFunc(r.Figures, func(f Figure) bool { return f.Name == s.name }) {
			fmt.Fprintf(w, "%-20s %s\n", s.name, s.what)
		}
	}
	return nil
}

func writeFigures(w io.Writer, figures []Figure) error {
	shown := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { // what was not measured is not shown
		return !slices.ContainsFunc(figures, func(f Figure) bool { return f.of(c.value).median != 0 })
	})
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range shown {
		fmt.Fprint(table, "\t", c.title)
	}
	fmt.Fprintln(table, "\t/s (spread)\t× pgbench (spread)\t")
	for _, f := range figures {
		fmt.Fprint(table, f)
		for _, c := range shown {
			fmt.Fprint(table, "\t")
			if value := f.of(c.value).median; value != 0 {
				fmt.Fprintf(table, c.format, value)
			}
		}
		rate, unit := f.of(perSecond), f.of(toUnit)
		fmt.Fprintf(table, "\t%.0f–%.0f\t%.3f–%.3f\t\n", rate.least, rate.most, unit.least, unit.most)
	}
	return table.Flush()
}

// writeRatios divides round by round, so that a machine that drifts does so under both.
func (r Report) writeRatios(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	compared := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return !c.compared })
	fmt.Fprint(table, "\nratios, median (spread)\tto")
	for _, c := range compared {
		fmt.Fprint(table, "\t", c.title)
	}
	fmt.Fprintln(table)
	for _, f := range r.Figures {
		for _, other := range r.comparedWith(f) {
			fmt.Fprint(table, f, "\t", other)
			for _, c := range compared {
				fmt.Fprint(table, "\t")
				if s := f.over(other, c.value); s.median > 0 {
					fmt.Fprintf(table, "%.2f (%.2f–%.2f)", s.median, s.least, s.most)
				}
			}
			fmt.Fprintln(table)
		}
	}
	return table.Flush()
}
