package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The carriers are processes of their own, and this binary is what starts itself.
func TestMain(m *testing.M) {
	if os.Getenv(carrierEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Every measurement compares what was accepted with the tables, the provider's
// books and the shop's, and is an error where something was lost or done twice.
// So running all of them is the test; no time is looked at.
func TestEverythingMeasuredIsDoneOnce(t *testing.T) {
	t.Parallel()
	s, err := openStage(t.Context(), io.Discard, quick(), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	along := *s // each has databases of its own
	along.sizes = brief().sizes()
	t.Run("by every subject", func(t *testing.T) {
		t.Parallel()
		everySubject(t, s)
	})
	t.Run("along every axis", func(t *testing.T) {
		t.Parallel()
		everyAxis(t, &along)
	})
}

func everySubject(t *testing.T, s *stage) {
	t.Helper()
	r, err := runCmd{Quick: true, Repeat: 1}.on(t.Context(), s, func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	var names, measured []string
	for _, s := range subjects() {
		names = append(names, s.name)
	}
	for _, f := range r.Figures {
		measured = append(measured, f.Name)
		if len(f.Samples) != 1 {
			t.Errorf("%s has %d samples", f.Name, len(f.Samples))
		}
	}
	if diff := cmp.Diff(names, measured); diff != "" {
		t.Errorf("measured (-want +got):\n%s", diff)
	}
	var table strings.Builder
	if err := r.writeTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.Contains(table.String(), name) {
			t.Errorf("the table lacks %s", name)
		}
	}
	folder := t.TempDir()
	if err := draw(folder, r); err != nil {
		t.Fatal(err)
	}
	for _, picture := range []string{"throughput.svg", "latency.svg"} {
		wantPicture(t, folder, picture)
	}
}

func wantPicture(t *testing.T, folder, picture string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, picture))
	if err != nil || !strings.Contains(string(text), "<svg") {
		t.Errorf("%s: %v", picture, err)
	}
}

// What the server was told decides what its figures are worth, so the page that shows
// them says it.
func TestPageSaysWhatTheServerIsTold(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "docs", "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range settings(false) {
		if said := "`" + name + "` " + value; !strings.Contains(string(page), said) {
			t.Errorf("docs/performance.md does not say %s", said)
		}
	}
}

// Every subject has a name of its own, and its rival is measured too.
func TestSubjectsAreComparedWithEachOther(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, s := range subjects() {
		if known[s.name] {
			t.Errorf("%s is there twice", s.name)
		}
		known[s.name] = true
	}
	for _, s := range subjects() {
		if s.rival != "" && !known[s.rival] {
			t.Errorf("%s is compared with %s, which is not measured", s.name, s.rival)
		}
	}
}

func TestFlow(t *testing.T) {
	t.Parallel()
	t.Run("what ends twice is found", func(t *testing.T) {
		t.Parallel()
		f := newFlow(2)
		f.begin(t.Context(), "a")
		f.end("a")
		if err := f.check(); err != nil {
			t.Fatal(err)
		}
		f.end("a")
		if err := f.check(); err == nil {
			t.Error("a charge that ended twice passed")
		}
	})
	t.Run("what does not end is found", func(t *testing.T) {
		t.Parallel()
		f := newFlow(2)
		f.begin(t.Context(), "a")
		f.begin(t.Context(), "b")
		f.end("a")
		if err := f.check(); err == nil {
			t.Error("a charge that did not end passed")
		}
	})
}

func TestSpreadIsTheMiddleAndTheEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   spread
	}{
		{nil, spread{}},
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{5, 1, 2}, spread{2, 1, 5}},
		{[]float64{4, 1, 2, 3}, spread{2.5, 1, 4}},
	} {
		if got := spreadOf(c.values); got != c.want {
			t.Errorf("spread of %v: %v, want %v", c.values, got, c.want)
		}
	}
}

func TestSampleDividesWhatWasUsed(t *testing.T) {
	t.Parallel()
	got := newSample(
		window{Done: 100, Total: 200, Seconds: 2, P50: 5 * time.Millisecond, Used: usage{Programs: time.Second, Database: 2 * time.Second}},
		counters{Writes: 400, Transactions: 800, Flushes: 20, LogBytes: 2000},
	)
	want := Sample{
		Done: 100, Total: 200, PerSecond: 50, P50: 5, ProgramCPU: 10, DatabaseCPU: 20,
		Writes: 2, Transactions: 4, Flushes: 0.1, LogBytes: 10,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sample (-want +got):\n%s", diff)
	}
}

func TestTPSIsReadFromPgbench(t *testing.T) {
	t.Parallel()
	got, err := tps([]byte("latency average = 2.1 ms\ninitial connection time = 30 ms\ntps = 15234.567 (without initial connection time)\n"))
	if err != nil || got != 15234.567 {
		t.Errorf("tps %v, %v", got, err)
	}
	if _, err := tps([]byte("pgbench: error: connection refused")); err == nil {
		t.Error("no tps passed for some")
	}
}
