package main

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// picture shows one value of some figures.
type picture struct {
	file, title, label string
	value              func(Sample) float64
}

// drawBars draws a picture of the rates and one of the latencies.
func drawBars(folder string, r Report) error {
	for _, p := range []struct {
		picture
		groups []string
	}{
		{picture{"throughput.svg", "Charges a second, in pgbench's single inserts of the same minute", "× pgbench", toUnit}, []string{"engine/", "charges/"}},
		{picture{"latency.svg", "From the request to the outcome, in the idle system", "median, ms", func(s Sample) float64 { return s.P50 }}, []string{"idle/"}},
	} {
		shown := slices.DeleteFunc(slices.Clone(r.Figures), func(f Figure) bool {
			return !slices.ContainsFunc(p.groups, func(group string) bool { return strings.HasPrefix(f.Name, group) })
		})
		if err := p.bars(folder, shown); err != nil {
			return fmt.Errorf("draw %s: %w", p.file, err)
		}
	}
	return nil
}

// bars draws one bar for each figure.
func (pic picture) bars(folder string, figures []Figure) error {
	if len(figures) == 0 {
		return nil // they were not measured
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.X.Min = pic.title, pic.label, 0
	var values plotter.Values
	var names []string
	for _, f := range slices.Backward(figures) { // the first one on top
		values, names = append(values, f.of(pic.value).median), append(names, f.String())
	}
	chart, err := plotter.NewBarChart(values, vg.Points(14))
	if err != nil {
		return err
	}
	chart.Horizontal, chart.Color = true, plotutil.Color(2)
	p.Add(chart)
	p.NominalY(names...)
	return p.Save(18*vg.Centimeter, vg.Length(2+len(figures))*vg.Centimeter, filepath.Join(folder, pic.file))
}

// drawLines draws the pictures of the axes that were measured.
func drawLines(folder string, r Report) error {
	for _, a := range axes {
		figures := slices.DeleteFunc(slices.Clone(r.Figures), func(f Figure) bool { return f.Axis != a.name })
		if len(figures) == 0 {
			continue
		}
		for _, p := range a.pictures {
			if err := p.lines(folder, a, figures); err != nil {
				return fmt.Errorf("draw %s: %w", p.file, err)
			}
		}
	}
	return nil
}

// lines draws the figures along an axis, joined by the axis's lines.
func (pic picture) lines(folder string, a axis, figures []Figure) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = pic.title, a.x, pic.label
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	place := scale(&p.X, a, figures)
	highest := 0.0
	var names []string
	points := map[string]plotter.XYs{}
	for _, f := range figures {
		name, y := a.line(f), f.of(pic.value).median
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		points[name] = append(points[name], plotter.XY{X: place(a.at(f)), Y: y})
		highest = max(highest, y)
	}
	for i, name := range names {
		joined, dots, err := plotter.NewLinePoints(points[name])
		if err != nil {
			return err
		}
		joined.Color, joined.Width = plotutil.Color(i), vg.Points(1.5)
		dots.Color, dots.Shape, dots.Radius = plotutil.Color(i), plotutil.Shape(i), vg.Points(2.5)
		p.Add(joined, dots)
		p.Legend.Add(name, joined, dots)
	}
	p.X.Max += (p.X.Max - p.X.Min) / 30 // the last mark's label has room
	p.Y.Min, p.Y.Max = 0, 1.4*highest   // and so has the legend
	return p.Save(20*vg.Centimeter, 12*vg.Centimeter, filepath.Join(folder, pic.file))
}

// scale puts a mark at each place, and places what is far apart by its magnitude. Then
// 0 stands before the first.
func scale(x *plot.Axis, a axis, figures []Figure) (place func(float64) float64) {
	var at []float64
	for _, f := range figures {
		at = append(at, a.at(f))
	}
	slices.Sort(at)
	at = slices.Compact(at)
	place = func(x float64) float64 { return x }
	least := at[0]
	if least == 0 && len(at) > 1 {
		least = at[1]
	}
	const farApart = 10
	if least > 0 && at[len(at)-1]/least > farApart {
		place = func(x float64) float64 { return math.Log10(max(x, least/10)) }
	}
	var ticks plot.ConstantTicks
	for _, x := range at {
		ticks = append(ticks, plot.Tick{Value: place(x), Label: strconv.FormatFloat(x, 'f', -1, 64)})
	}
	x.Tick.Marker = ticks
	return place
}
