package main

import (
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/pprof/profile"
)

// TestProfile: all time that a profile holds is in one part or another.
func TestProfile(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	ways, err := profileCmd{Keep: folder}.measure(t.Context(), io.Discard, quick())
	if err != nil {
		t.Fatal(err)
	}
	if len(ways) != 3 {
		t.Fatalf("%d ways, want the api's of an accept, and both programs' of a charge", len(ways))
	}
	total := regexp.MustCompile(`Total samples = *([0-9.]+[mµn]?s)`)
	for _, w := range ways {
		file := filepath.Join(folder, w.of+"-"+w.program+".pprof")
		head, err := exec.CommandContext(t.Context(), "go", "tool", "pprof", "-top", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		found := total.FindSubmatch(head)
		if found == nil {
			t.Fatalf("%s of each %s: no total in %s", w.program, w.of, head)
		}
		want, err := time.ParseDuration(string(found[1]))
		if err != nil {
			t.Fatal(err)
		}
		var sum, known float64
		for _, s := range w.spent {
			sum += s.micros
			if s.part != rest {
				known += s.micros
			}
		}
		if got := sum * float64(w.done); math.Abs(got-float64(want.Microseconds())) > 1 {
			t.Errorf("%s of each %s: parts of %.0f µs in all, want %v", w.program, w.of, got, want)
		}
		if known < sum/2 {
			t.Errorf("%s of each %s: %.0f of %.0f µs are in no part", w.program, w.of, sum-known, sum)
		}
	}
}

// TestReadProfile: each sample counts once, also one of which Go could not tell
// where it was taken.
func TestReadProfile(t *testing.T) {
	t.Parallel()
	commits := &profile.Function{ID: 1, Name: "github.com/payonce/payonce/internal/postgres.(*DB).commit"}
	walks := &profile.Function{ID: 2, Name: "github.com/payonce/payonce/fulfillment.(*walk).commitOnce"}
	inlined := &profile.Location{ID: 1, Line: []profile.Line{{Function: commits}, {Function: walks}}}
	nameless := &profile.Location{ID: 2, Address: 4096}
	written := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}},
		Function:   []*profile.Function{commits, walks},
		Location:   []*profile.Location{inlined, nameless},
		Sample: []*profile.Sample{
			{Location: []*profile.Location{inlined}, Value: []int64{3, 30e6}},
			{Location: []*profile.Location{nameless}, Value: []int64{1, 10e6}},
			{Value: []int64{1, 10e6}},
		},
	}
	file := filepath.Join(t.TempDir(), "cpu.pprof")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(written.Write(f), f.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := readProfile(file, partsOf("worker"), 10)
	want := []spent{{"commits: encode, send, wait", 3000}, {rest, 2000}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

// TestPartOf: the first part that is on the stack has it.
func TestPartOf(t *testing.T) {
	t.Parallel()
	worker := partsOf("worker")
	for want, stack := range map[string][]string{
		rest:                          {"main.main"},
		"commits: encode, send, wait": {"syscall.write", "github.com/payonce/payonce/internal/postgres.(*DB).commit", "github.com/payonce/payonce/fulfillment.(*walk).commitOnce"},
		"steps, the rest of them":     {"encoding/json.Marshal", "github.com/payonce/payonce/fulfillment.(*walk).carry"},
	} {
		if got := partOf(stack, worker); got != want {
			t.Errorf("%v is in %q, want %q", stack, got, want)
		}
	}
}
