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

// The tests' binary starts itself as River's service.
func TestMain(m *testing.M) {
	if os.Getenv(riverEnv) != "" {
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
	c := runCmd{Quick: true, Profile: t.TempDir(), InFlight: []int{8}, Merchants: []int{1}, APIs: []int{1}, Workers: []int{1}, Stored: []int{0}}
	b, err := open(t.Context(), io.Discard, c)
	testrun.Must(t, err)
	t.Cleanup(func() { testrun.Must(t, b.close()) })
	plan, err := c.plan()
	testrun.Must(t, err)
	plan = append(plan, setting{work: "charges", by: byPayonce, inFlight: 8, merchants: 3, apis: 2, workers: 2, stored: 50})
	r, err := b.measure(t.Context(), plan)
	testrun.Must(t, err)
	var table strings.Builder
	testrun.Must(t, r.table(&table))
	for _, s := range plan {
		if !strings.Contains(table.String(), s.String()+" ") {
			t.Errorf("%s is not in the table:\n%s", s, &table)
		}
	}
	for _, program := range []string{"api-0", "worker-1"} {
		file := filepath.Join(c.Profile, "charges-by-payonce-in-flight-8-"+program+".pprof")
		if out, err := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-top", file).CombinedOutput(); err != nil {
			t.Errorf("%s is no profile: %s", file, out)
		}
	}
	testrun.Must(t, b.cleanUp(t.Context()))
	var left int
	testrun.Must(t, read(t.Context(), b.server.URL("postgres"), "select count(*) from pg_database where datname like 'bench%'", nil, &left))
	if left != 0 {
		t.Errorf("%d databases are left", left)
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

func TestPlan_putsTheRivalsBeforePayonce(t *testing.T) {
	t.Parallel()
	plan, err := runCmd{
		Only: "^(accept|charges|idle)/", InFlight: []int{1, 16}, Merchants: []int{1}, APIs: []int{1}, Workers: []int{1}, Stored: []int{0, 9}, Base: "other",
	}.plan()
	testrun.Must(t, err)
	var got []string
	for _, s := range plan {
		got = append(got, s.String())
	}
	var want []string
	for _, in := range []string{"/in-flight=1", "/in-flight=1/stored=9", "/in-flight=16", "/in-flight=16/stored=9"} {
		want = append(want, "accept/by=base"+in, "accept/by=payonce"+in)
	}
	for _, in := range []string{"/in-flight=1", "/in-flight=1/stored=9", "/in-flight=16", "/in-flight=16/stored=9"} {
		want = append(want, "charges/by=base"+in, "charges/by=river"+in, "charges/by=payonce"+in)
	}
	want = append(want, "idle/by=base", "idle/by=river", "idle/by=payonce", "idle/by=base/stored=9", "idle/by=payonce/stored=9")
	want = slices.DeleteFunc(want, func(name string) bool { return strings.Contains(name, "river") && strings.Contains(name, "stored") })
	if !slices.Equal(got, want) {
		t.Errorf("plan %q, want %q", got, want)
	}
}

func TestLoad_check(t *testing.T) {
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
		l := newLoad(2)
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

func TestReport_dividesRoundByRound(t *testing.T) {
	t.Parallel()
	var r report
	ours, other := setting{work: "charges", by: byPayonce}, setting{work: "charges", by: byBase}
	for _, rate := range []float64{100, 200, 400} {
		r.add(other, newSample(window{done: int(rate), seconds: 1}, counters{Writes: 10}, 5))
		r.add(ours, newSample(window{done: int(3 * rate), seconds: 2, p50: time.Millisecond}, counters{}, 0))
	}
	if got, want := r.over(ours, byBase, rate), "1.50 (1.50–1.50)"; got != want {
		t.Errorf("ratio %s, want %s", got, want)
	}
	if got := r.over(other, byBase, rate); got != "" {
		t.Errorf("the base divided by itself is %s", got)
	}
	const line = "BenchmarkCharges/by=base 1 200 /s 0 p50-ms 0 p99-ms 2 writing/op 0 transactions/op"
	if !strings.Contains(r.benchstat(), line) {
		t.Errorf("benchstat reads %s, want %s", r.benchstat(), line)
	}
}
