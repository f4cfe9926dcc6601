package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gonum.org/v1/plot"
)

// everyAxis is a part of TestEverythingMeasuredIsDoneOnce.
func everyAxis(t *testing.T, s *stage) {
	t.Helper()
	r, err := s.curves(t.Context(), brief(), func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	e := brief()
	want := map[string]int{
		"tables":      2 * len(e.Tables), // carried, and accepted
		"backlog":     len(e.Backlogs),
		"concurrency": 2 * len(e.InFlight), // by payonce, and by River
		"latency":     2 * len(e.Latencies) * len(e.SlowInFlight),
		"retention":   2, // without, and with the janitor
		"memory":      e.Slices,
	}
	got := map[string]int{}
	for _, c := range r.Curves {
		for _, p := range c.Points {
			if !p.Part {
				got[c.Axis]++
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("points (-want +got):\n%s", diff)
	}
	var tables strings.Builder
	if err := r.writeTables(&tables); err != nil {
		t.Fatal(err)
	}
	for _, a := range axes() {
		if !strings.Contains(tables.String(), "\n"+a.name+": ") {
			t.Errorf("there is no table of %s", a.name)
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestCurvesAreDrawn(t *testing.T) {
	t.Parallel()
	var r Curves
	for _, a := range axes() {
		c := Curve{Axis: a.name, X: a.x}
		for _, by := range []string{"one", "another"} {
			for x := range 3 {
				memory := Resident{Start: 20, End: 30, Peak: 40}
				c.Points = append(c.Points, Point{
					X: float64(1000 * x), By: by, Ideal: 200, API: memory, Worker: memory,
					Sample: Sample{PerSecond: 100, Unit: 1000, P99: 50, ProgramCPU: 1, DatabaseCPU: 2},
				})
			}
		}
		r.Curves = append(r.Curves, c)
	}
	folder := t.TempDir()
	if err := drawCurves(folder, r); err != nil {
		t.Fatal(err)
	}
	for _, a := range axes() {
		for _, p := range a.pictures {
			wantPicture(t, folder, p.file)
			text, err := os.ReadFile(filepath.Join(folder, p.file))
			if err != nil || !strings.Contains(string(text), "another") {
				t.Errorf("%s lacks a line", p.file)
			}
		}
	}
}

func TestCurveJoinsWhatBelongsTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		points []Point
		want   []string // of each line, with its length
	}{
		{"the points of the table", []Point{{By: "a"}, {By: "b"}, {By: "a"}}, []string{"a", "a", "b"}},
		{"parts instead of their sums", []Point{{By: "sum"}, {By: "a", Part: true}, {By: "b", Part: true}}, []string{"a", "b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, l := range (Curve{Points: c.points}).lines() {
				for range l.points {
					got = append(got, l.by)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

func TestScalePlacesFarPointsByMagnitude(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		at, want []float64
	}{
		{"far apart", []float64{0, 1000, 10_000, 100_000}, []float64{2, 3, 4, 5}},
		{"near", []float64{0, 50, 100, 200}, []float64{0, 50, 100, 200}},
		{"many", []float64{1, 2, 3, 4, 5, 6, 7, 8, 9000}, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9000}},
		{"nothing but the origin", []float64{0}, []float64{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var points []Point
			for _, x := range c.at {
				points = append(points, Point{X: x})
			}
			p := plot.New()
			place := Curve{Points: points}.scale(&p.X)
			var got []float64
			for _, x := range c.at {
				got = append(got, place(x))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("places (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMemoryIsReadFromTheKernel(t *testing.T) {
	t.Parallel()
	status := []byte("Name:\tapi\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\nThreads:\t9\n")
	if now, most := megabytes(status, "VmRSS:"), megabytes(status, "VmHWM:"); now != 10 || most != 20 {
		t.Errorf("%v MB now, %v MB at most", now, most)
	}
	if none := megabytes(nil, "VmRSS:"); none != 0 {
		t.Errorf("%v MB of nothing", none)
	}
}

// A drain that is slow is waited for, and one that stands still is not for ever.
func TestFlowIsAsPatientAsItIsTold(t *testing.T) {
	t.Parallel()
	f := newFlow(1)
	f.patience = time.Millisecond
	f.begin(t.Context(), "a")
	if err := f.await(t.Context()); err == nil {
		t.Error("it was waited for without an end")
	}
	f.end("a")
	if err := f.await(t.Context()); err != nil {
		t.Error(err)
	}
}
