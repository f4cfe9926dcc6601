package demo

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/traffic"
	"github.com/payonce/payonce/internal/robustness/validate"
	"github.com/payonce/payonce/internal/testrun"
)

func TestInDatabase(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"postgres://me:pw@db:5433/mine?sslmode=require": "postgres://me:pw@db:5433/other?sslmode=require",
		"postgresql:///mine?host=%2Ftmp&dbname=x":       "postgresql:///other?host=%2Ftmp",
		"postgres://db":              "postgres://db/other",
		"host=/tmp user=me dbname=x": "host=/tmp user=me dbname=x dbname=other",
	} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			got, err := inDatabase(server, "other")
			if err != nil || got != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		})
	}
}

func TestStrikes_breakEnoughWhileChargesFlow(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 5, 200, 2000} {
		length := traffic.NewPlan(11, n, "run").Length
		counts, last := map[strikeKind]int{}, time.Duration(0)
		for _, s := range newStrikes(11, length) {
			counts[s.kind]++
			if s.at < last || s.at > length {
				t.Errorf("%s at %s, after %s, in a run of %s", s.kind, s.at, last, length)
			}
			last = s.at
		}
		if counts[killWorker] < validate.LeastWorkerKills || counts[killAPI] != 1 || counts[restartDatabase] != 1 {
			t.Errorf("strikes: %v", counts)
		}
	}
}

func TestReportFindings_otherChecksThanExpected_isBroken(t *testing.T) {
	t.Parallel()
	for asExpected, want := range map[bool]error{true: nil, false: ErrBroken} {
		var out strings.Builder
		f := Finding{Guard: Guards()[0], AsExpected: asExpected, Violated: []validate.Check{{Name: "streams have no gap", Violated: 1, Examples: []any{"ch_1"}}}}
		if err := reportFindings(Options{Stdout: &out}, []Finding{f}); !errors.Is(err, want) || !strings.Contains(out.String(), "streams have no gap, for example ch_1") {
			t.Errorf("as expected is %v: %v, and printed\n%s", asExpected, err, out.String())
		}
	}
}

func TestBreak_refusesAnUnknownGuard(t *testing.T) {
	t.Parallel()
	if err := Break(t.Context(), Options{}, "no_such_guard"); err == nil {
		t.Error("it is accepted")
	}
}

func TestMain(m *testing.M) { testrun.Main(m) }
