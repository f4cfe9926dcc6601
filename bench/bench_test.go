package main

import (
	"io"
	"os"
	"path/filepath"
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
// and the merchant's, and returns an error where something was lost or done twice. So
// running all of them is the test; no time is asserted.
func TestMeasure_findsThatEverythingIsDoneOnce(t *testing.T) {
	t.Parallel()
	c := runCmd{Only: "in-flight=16|idle", For: 400 * time.Millisecond}
	b, err := open(t.Context(), io.Discard, c, 0)
	testrun.Must(t, err)
	t.Cleanup(func() { testrun.Must(t, b.close()) })
	b.replayed = 100
	plan, err := c.plan()
	testrun.Must(t, err)
	var printed strings.Builder
	testrun.Must(t, b.measure(t.Context(), &printed, plan, 1))
	if got := strings.Count(printed.String(), "\nBenchmark"); got != len(plan)-1 {
		t.Errorf("%d settings are measured, and printed is\n%s", len(plan), &printed)
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
	plan, err := runCmd{Only: "^(accept|charges|idle)/.*(e|r|=16)$", Base: "other"}.plan()
	testrun.Must(t, err)
	var got []string
	for _, s := range plan {
		got = append(got, s.String())
	}
	testrun.Same(t, "plan", []string{
		"accept/by=base/in-flight=16", "accept/by=payonce/in-flight=16",
		"charges/by=base/in-flight=16", "charges/by=river/in-flight=16", "charges/by=payonce/in-flight=16",
		"idle/by=base", "idle/by=river", "idle/by=payonce",
	}, got)
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
		l := &load{flying: map[string]chan<- time.Time{}}
		for _, id := range c.begin {
			l.flying[id] = make(chan time.Time, 1)
		}
		for _, id := range c.end {
			l.end(id)
		}
		if err := l.check(); (err == nil) != c.passes {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestSample_divides(t *testing.T) {
	t.Parallel()
	busy := newSample(window{done: 400, seconds: 2, p50: time.Millisecond}, counters{Transactions: 10}, 5)
	rests := newSample(window{seconds: 2, atRest: counters{Flushes: 3}}, counters{Transactions: 10}, 0)
	testrun.Same(t, "lines", []string{
		"BenchmarkCharges/by=base/in-flight=16 1 200 /s 1 p50-ms 0 p99-ms 2 transactions/op 0 flushes/op 0 WAL-B/op 0 programs-ms/op 0 PostgreSQL-ms/op",
		"BenchmarkIdle/by=river 1 0 /s 0 p50-ms 0 p99-ms 0 transactions/op 1.5 flushes/op 0 WAL-B/op 0 programs-ms/op 0 PostgreSQL-ms/op",
	}, []string{busy.line(setting{"charges", byBase, 16}), rests.line(setting{"idle", byRiver, 0})})
}
