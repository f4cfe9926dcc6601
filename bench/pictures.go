package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// draw writes a picture of the rates and one of the latencies.
func draw(folder string, r Report) error {
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // pictures for everybody
		return fmt.Errorf("make the folder of the pictures: %w", err)
	}
	pictures := []struct {
		file, title, axis string
		groups            []string
		value             func(Sample) float64
	}{
		{"throughput.svg", "Charges a second, in pgbench's single inserts of the same minute", "× pgbench", []string{"engine/", "charges/"}, toUnit},
		{"latency.svg", "From the request to the outcome, in the idle system", "median, ms", []string{"idle/"}, func(s Sample) float64 { return s.P50 }},
	}
	for _, p := range pictures {
		if err := bars(filepath.Join(folder, p.file), p.title, p.axis, r.within(p.groups), p.value); err != nil {
			return err
		}
	}
	return nil
}

// within are the figures of some groups.
func (r Report) within(groups []string) []Figure {
	var within []Figure
	for _, f := range r.Figures {
		for _, group := range groups {
			if strings.HasPrefix(f.Name, group) {
				within = append(within, f)
			}
		}
	}
	return within
}

// bars draws one bar for each figure.
func bars(file, title, axis string, figures []Figure, value func(Sample) float64) error {
	if len(figures) == 0 {
		return nil // it was not measured
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.X.Min = title, axis, 0
	values, names := make(plotter.Values, len(figures)), make([]string, len(figures))
	for i, f := range figures {
		at := len(figures) - 1 - i // the first one on top
		values[at], names[at] = f.of(value).median, f.Name
	}
	chart, err := plotter.NewBarChart(values, vg.Points(14))
	if err != nil {
		return fmt.Errorf("draw %s: %w", file, err)
	}
	chart.Horizontal = true
	chart.Color = plotutil.Color(2)
	p.Add(chart)
	p.NominalY(names...)
	if err := p.Save(18*vg.Centimeter, vg.Length(2+len(figures))*vg.Centimeter, file); err != nil {
		return fmt.Errorf("draw %s: %w", file, err)
	}
	return nil
}
