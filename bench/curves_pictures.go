package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// picture shows one value of an axis's points.
type picture struct {
	file, title, y string
	value          func(Point) float64
}

// drawCurves draws the pictures of what was measured.
func drawCurves(folder string, r Curves) error {
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // pictures for everybody
		return fmt.Errorf("make the folder of the pictures: %w", err)
	}
	for _, a := range axes() {
		at := slices.IndexFunc(r.Curves, func(c Curve) bool { return c.Axis == a.name })
		if at < 0 || len(r.Curves[at].Points) == 0 {
			continue // it was not measured
		}
		for _, p := range a.pictures {
			if err := p.draw(filepath.Join(folder, p.file), r.Curves[at]); err != nil {
				return fmt.Errorf("draw %s: %w", p.file, err)
			}
		}
	}
	return nil
}

func (pic picture) draw(file string, c Curve) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = pic.title, c.X, pic.y
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	place := c.scale(&p.X)
	highest := 0.0
	for i, l := range c.lines() {
		var points, ideal plotter.XYs
		for _, point := range l.points {
			if y := pic.value(point); y > 0 {
				points = append(points, plotter.XY{X: place(point.X), Y: y})
				highest = max(highest, y)
			}
			if point.Ideal > 0 {
				ideal = append(ideal, plotter.XY{X: place(point.X), Y: point.Ideal})
			}
		}
		if err := add(p, l.by, i, points); err != nil {
			return err
		}
		if err := addBroken(p, i, ideal); err != nil {
			return err
		}
	}
	p.X.Max += (p.X.Max - p.X.Min) / 30 // the last mark's label has room
	p.Y.Min, p.Y.Max = 0, 1.4*highest   // and so has the legend; an ideal leaves the picture
	if err := p.Save(20*vg.Centimeter, 12*vg.Centimeter, file); err != nil {
		return fmt.Errorf("save the picture: %w", err)
	}
	return nil
}

// line are the points that are joined.
type line struct {
	by     string
	points []Point
}

// lines are the parts, where there are any, and else the points of the table.
func (c Curve) lines() (lines []line) {
	parts := slices.ContainsFunc(c.Points, func(p Point) bool { return p.Part })
	for _, p := range c.Points {
		if p.Part != parts {
			continue
		}
		at := slices.IndexFunc(lines, func(l line) bool { return l.by == p.By })
		if at < 0 {
			at = len(lines)
			lines = append(lines, line{by: p.By})
		}
		lines[at].points = append(lines[at].points, p)
	}
	return lines
}

// What is measured at a few places far from each other is drawn by their
// magnitude, with a mark at each.
const (
	fewPlaces = 8
	farApart  = 10
)

// scale places the points on an axis. On one of magnitudes, 0 stands before the
// first.
func (c Curve) scale(axis *plot.Axis) (place func(float64) float64) {
	var at []float64
	for _, l := range c.lines() {
		for _, p := range l.points {
			at = append(at, p.X)
		}
	}
	slices.Sort(at)
	at = slices.Compact(at)
	place = func(x float64) float64 { return x }
	if len(at) > fewPlaces {
		return place
	}
	least := at[len(at)-1]
	for _, x := range at {
		if x > 0 {
			least = min(least, x)
		}
	}
	if least > 0 && at[len(at)-1]/least > farApart {
		place = func(x float64) float64 {
			if x == 0 {
				return math.Log10(least) - 1
			}
			return math.Log10(x)
		}
	}
	var ticks plot.ConstantTicks
	for _, x := range at {
		ticks = append(ticks, plot.Tick{Value: place(x), Label: strconv.FormatFloat(x, 'f', -1, 64)})
	}
	axis.Tick.Marker = ticks
	return place
}

func add(p *plot.Plot, name string, number int, points plotter.XYs) error {
	if len(points) == 0 {
		return nil
	}
	joined, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return fmt.Errorf("draw %s: %w", name, err)
	}
	joined.Color, joined.Width = plotutil.Color(number), vg.Points(1.5)
	dots.Color, dots.Shape, dots.Radius = plotutil.Color(number), plotutil.Shape(number), vg.Points(2.5)
	p.Add(joined, dots)
	p.Legend.Add(name, joined, dots)
	return nil
}

func addBroken(p *plot.Plot, number int, points plotter.XYs) error {
	if len(points) == 0 {
		return nil
	}
	joined, err := plotter.NewLine(points)
	if err != nil {
		return fmt.Errorf("draw an ideal: %w", err)
	}
	joined.Color, joined.Width, joined.Dashes = plotutil.Color(number), vg.Points(1), plotutil.Dashes(1)
	p.Add(joined)
	return nil
}
