package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/testrun"
)

// The tests' binary starts itself as a child.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Every measurement compares what was accepted with the tables, the provider's counts
// and the merchants', and returns an error where something was lost or done twice. So
// running all of them is the test; no time is asserted.
func TestMeasure_findsThatEverythingIsDoneOnce(t *testing.T) {
	t.Parallel()
	profiles := t.TempDir()
	b, err := open(t.Context(), io.Discard, runCmd{Quick: true, Profile: profiles})
	testrun.Must(t, err)
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	measureAll(t, b, planOf(t, runCmd{}))
	several := runCmd{Only: "^(accept|charges)/payonce$", InFlight: []int{8}, Slots: []int{16}, Merchants: []int{3}, APIs: []int{2}, Workers: []int{2}, Stored: []int{50}, Latency: []int{20}}
	measureAll(t, b, planOf(t, several))
	for _, program := range []string{"api-0", "worker-1"} {
		file := filepath.Join(profiles, "charges-payonce-"+program+".pprof")
		if out, err := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-top", file).CombinedOutput(); err != nil {
			t.Errorf("%s is no profile: %s", file, out)
		}
	}
}

func planOf(t *testing.T, c runCmd) []planned {
	t.Helper()
	plan, err := c.plan()
	testrun.Must(t, err)
	return plan
}

func measureAll(t *testing.T, b *bench, plan []planned) {
	t.Helper()
	var r Report
	testrun.Must(t, b.measure(t.Context(), &r, plan, 1))
	var table strings.Builder
	testrun.Must(t, r.writeTables(&table))
	for _, p := range plan {
		f := r.figure(p.subject.name, p.setting)
		if f == nil || len(f.Samples) != 1 || !strings.Contains(table.String(), f.String()) {
			t.Errorf("%s was not measured, or is not in the table", p)
		}
	}
}

// The server's settings decide what its figures are worth, so the page that shows the
// figures names them.
func TestPage_namesTheServersSettings(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "docs", "explanation", "performance.md"))
	testrun.Must(t, err)
	for name, value := range settings {
		if part := "`" + name + "` " + value; !strings.Contains(string(text), part) {
			t.Errorf("docs/explanation/performance.md lacks %s", part)
		}
	}
}

func TestSubjects_haveRivalsThatAreMeasured(t *testing.T) {
	t.Parallel()
	for _, s := range subjects {
		if s.rival != "" && !slices.ContainsFunc(subjects, func(rival subject) bool { return rival.name == s.rival }) {
			t.Errorf("%s is compared with %s, which is not measured", s.name, s.rival)
		}
	}
}

func TestPlan_combinesTheSettingsAndPutsTheBaseBeforeOurs(t *testing.T) {
	t.Parallel()
	var got []string
	for _, p := range planOf(t, runCmd{Only: "^accept/|^few/river", Merchants: []int{1, 1000}, APIs: []int{1, 4}, Base: "other"}) {
		got = append(got, p.String())
	}
	want := []string{
		"accept/payonce base", "accept/payonce", "accept/payonce apis=4 base", "accept/payonce apis=4",
		"accept/payonce merchants=1000 base", "accept/payonce merchants=1000",
		"accept/payonce merchants=1000 apis=4 base", "accept/payonce merchants=1000 apis=4",
		"few/river-64", "few/river-64 apis=4", "few/river-64 merchants=1000", "few/river-64 merchants=1000 apis=4",
	}
	testrun.Same(t, "plan", want, got)
}

func TestLoop_check(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		begin, end []string
		passes     bool
	}{
		{"everything ended once", []string{"a", "b"}, []string{"b", "a"}, true},
		{"one ended twice", []string{"a"}, []string{"a", "a"}, false},
		{"one did not end", []string{"a", "b"}, []string{"a"}, false},
	} {
		l := newLoop(2)
		for _, id := range c.begin {
			l.begin(t.Context(), id)
		}
		for _, id := range c.end {
			l.end(id)
		}
		if err := l.check(); (err == nil) != c.passes {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestLoop_awaitEndsWithItsPatience(t *testing.T) {
	t.Parallel()
	l := newLoop(1)
	l.patience = time.Millisecond
	l.begin(t.Context(), "a")
	if err := l.await(t.Context()); err == nil {
		t.Error("await returned without an error")
	}
	l.end("a")
	if err := l.await(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSpreadOf_isTheMedianAndTheEnds(t *testing.T) {
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

func TestComparedWith_dividesRoundByRound(t *testing.T) {
	t.Parallel()
	var r Report
	us, rival := planned{subject: subject{name: "us", rival: "rival"}}, planned{subject: subject{name: "rival"}}
	us.setting, rival.setting = runCmd{}.settings()[0], runCmd{}.settings()[0]
	slow, base := us, us
	slow.setting.Merchants, base.setting.Base = 1000, true
	for _, rate := range []float64{100, 200, 300} {
		r.add(base, Sample{PerSecond: 2 * rate})
		r.add(us, Sample{PerSecond: rate})
		r.add(slow, Sample{PerSecond: rate / 4})
		r.add(rival, Sample{PerSecond: rate / 2})
	}
	got := map[string]float64{}
	for _, f := range r.Figures {
		for _, other := range r.comparedWith(f) {
			got[f.String()+" to "+other.String()] = f.over(other, perSecond).median
		}
	}
	want := map[string]float64{"us to rival": 2, "us base to rival": 4, "us to us base": 0.5, "us merchants=1000 to us": 0.25}
	testrun.Same(t, "ratios", want, got)
}

func TestNewSample_dividesWhatWasUsed(t *testing.T) {
	t.Parallel()
	got := newSample(
		window{Done: 100, Total: 200, Seconds: 2, P50: 5 * time.Millisecond, Used: usage{Programs: time.Second, Database: 2 * time.Second}},
		counters{Writes: 400, Transactions: 800, Flushes: 20, LogBytes: 2000, Statements: 600},
	)
	want := Sample{
		Done: 100, Total: 200, PerSecond: 50, P50: 5, ProgramCPU: 10, DatabaseCPU: 20,
		Writes: 2, Transactions: 4, Flushes: 0.1, LogBytes: 10, Statements: 3,
	}
	testrun.Same(t, "sample", want, got)
}

func TestTPS_readsPgbenchsRate(t *testing.T) {
	t.Parallel()
	got, err := tps([]byte("latency average = 2.1 ms\ninitial connection time = 30 ms\ntps = 15234.567 (without initial connection time)\n"))
	if err != nil || got != 15234.567 {
		t.Errorf("tps %v, %v", got, err)
	}
	if _, err := tps([]byte("pgbench: error: connection refused")); err == nil {
		t.Error("an output without a rate is no error")
	}
}
