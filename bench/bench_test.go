package main

import (
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

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
	for _, s := range plan {
		for _, part := range []string{sample{}.line(s)[:len("Benchmark"+s.String())] + " ", s.String() + "  "} {
			if !strings.Contains(printed.String(), part) {
				t.Errorf("%s is not in\n%s", part, &printed)
			}
		}
	}
}

func TestExternal_countsAWebhookOfWhatHadEnded(t *testing.T) {
	t.Parallel()
	e, err := openExternal()
	testrun.Must(t, err)
	t.Cleanup(e.close)
	ended := e.expect("a")
	for webhook, twice := range []int{0, 1, 1} { // the last one repeats an id
		var c fasthttp.RequestCtx
		c.Request.Header.Set("webhook-id", strconv.Itoa(min(webhook, 1)))
		c.Request.Header.Set("webhook-signature", "v1,")
		c.Request.SetBodyString(`{"data":{"order_id":"a"}}`)
		e.shop(&c)
		<-ended
		if e.twice != twice {
			t.Errorf("webhook %d: %d came twice, want %d", webhook, e.twice, twice)
		}
	}
}

func TestSample_divides(t *testing.T) {
	t.Parallel()
	busy := newSample(window{done: 400, seconds: 2, p50: time.Millisecond}, counters{Transactions: 10}, 5)
	rests := newSample(window{seconds: 2, counted: counters{Flushes: 3}}, counters{Transactions: 10}, 0)
	testrun.Same(t, "lines", []string{
		"BenchmarkCharges/by=base/in-flight=16 1 200 /s 1 p50-ms 0 p99-ms 2 transactions/op 0 flushes/op 0 WAL-B/op 0 programs-ms/op 0 PostgreSQL-ms/op",
		"BenchmarkIdle/by=river 1 0 /s 0 p50-ms 0 p99-ms 0 transactions/op 1.5 flushes/op 0 WAL-B/op 0 programs-ms/op 0 PostgreSQL-ms/op",
	}, []string{busy.line(setting{"charges", byBase, 16}), rests.line(setting{"idle", byRiver, 0})})
}

func TestReport_dividesRoundByRound(t *testing.T) {
	t.Parallel()
	ours, other, r := setting{work: "charges", by: byPayonce}, setting{work: "charges", by: byBase}, report{}
	for i, rate := range []float64{100, 200, 400} {
		r[other] = append(r[other], sample{perSecond: rate, programCPU: 1, databaseCPU: 3})
		r[ours] = append(r[ours], sample{perSecond: rate * float64(i+1), databaseCPU: 2})
	}
	testrun.Same(t, "the ratios", []string{"2.00 (1.00–3.00)", "0.50 (0.50–0.50)", "", ""}, []string{
		r.over(ours, byBase, rate), r.over(ours, byBase, processor),
		r.over(ours, byRiver, rate), r.over(other, byBase, rate),
	})
	var table strings.Builder
	testrun.Must(t, r.table(&table, []setting{other, ours}))
	for _, part := range []string{"/s ÷ base", "processor ÷ river", "400", "2.00 (1.00–3.00)"} {
		if !strings.Contains(table.String(), part) {
			t.Errorf("%s is not in\n%s", part, &table)
		}
	}
}
