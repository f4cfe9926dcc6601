package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

var walkWhat = flag.String("walk", "", "the crash walk: distinct, points, all, pairs, scenario/program, points (scenario/program/point, separated by |), or scenario/program/point/side/fault; a sample where empty")

// sampleSize is about how many points a sample hits. It takes the start of the programs and one
// scenario, by the seed. Continuous integration walks to every round trip.
const sampleSize = 6

// TestWalk injects a fault into the api or the worker at each of their round trips with the
// database, the provider and the shop, before and after it, and checks every invariant from
// outside.
//
// A walk has one request at a time. It shows nothing of power cuts, broken disks
// or a provider that breaks its own contract.
func TestWalk(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	if *updatePoints && *walkWhat != "points" {
		t.Fatal("-update needs all recordings: -walk=points")
	}
	begun := time.Now()
	seed := testrun.Seed(t)
	w := newWalker(t, binaries(t))
	wanted := func(string, string) bool { return true }
	if *walkWhat == "" {
		w.environment.parallelRuns = sampleParallelRuns
		one := scenarios()[rand.New(rand.NewPCG(seed, 1)).IntN(len(scenarios()))].name
		wanted = func(scenario, _ string) bool { return scenario == one || scenario == "start" && one == "success" }
		t.Logf("sampled scenario: %s; not run: all others (-walk=points runs every point of every scenario)", one)
	}
	if strings.Contains(*walkWhat, "/") {
		wanted = func(scenario, program string) bool {
			return slices.ContainsFunc(strings.Split(*walkWhat, "|"), func(address string) bool {
				return strings.HasPrefix(address+"/", scenario+"/"+program+"/")
			})
		}
	}
	recordings, err := w.recordings(t.Context(), wanted)
	must(t, err)
	show(t, recordings)
	if everyScenario := []string{"distinct", "points", "all", "pairs"}; slices.Contains(everyScenario, *walkWhat) {
		checkPoints(t, recordings)
	}
	if *updatePoints {
		t.Logf("wrote %s in %.1f s", pointsFile, time.Since(begun).Seconds())
		return
	}
	targets, err := chosen(recordings, *walkWhat, rand.New(rand.NewPCG(seed, 0)))
	must(t, err)
	t.Logf("made %d recordings in %.1f s; -seed=%d", len(recordings), time.Since(begun).Seconds(), seed)
	if err := w.walk(t.Context(), recordings, targets); err != nil {
		t.Error(err)
	}
	t.Logf("the crash walk, -seed=%d\n%s\n%s", seed, w.summary(time.Since(begun)), notRun(recordings, targets))
}

// show lists the points, for -v.
func show(t *testing.T, recordings []recording) {
	t.Helper()
	for _, c := range recordings {
		var points strings.Builder
		for _, p := range c.points {
			points.WriteString("\n  " + p.String())
		}
		t.Logf("%s/%s: %d points%s", c.scenario.name, c.program, len(c.points), points.String())
		if len(c.unstable) > 0 {
			t.Logf("%s/%s: came up in one recording and not in the other, not planned: %q", c.scenario.name, c.program, c.unstable)
		}
	}
}

// chosen are the targets of a walk.
func chosen(recordings []recording, what string, rng *rand.Rand) ([]target, error) {
	var targets []target
	seen := map[string]bool{}
	for _, c := range recordings {
		switch what {
		case "all":
			targets = append(targets, everything(c)...)
		case "pairs":
			targets = append(targets, pairsOf(c)...)
		case "":
			targets = append(targets, sampleOf(c, rng, max(1, pointsOf(recordings)/sampleSize))...)
		case "points":
			targets = append(targets, sampleOf(c, rng, 1)...)
		case "distinct":
			targets = append(targets, sampleOf(c.without(seen), rng, 1)...)
		default:
			for address := range strings.SplitSeq(what, "|") {
				targets = append(targets, slices.DeleteFunc(append(everything(c), pairsOf(c)...), func(t target) bool {
					return !t.isAt(address)
				})...)
			}
		}
	}
	for address := range strings.SplitSeq(what, "|") {
		if len(targets) == 0 || strings.Contains(address, "/") && !slices.ContainsFunc(targets, func(t target) bool { return t.isAt(address) }) {
			return nil, fmt.Errorf("-walk=%s: neither distinct, points, all, pairs nor a run", address)
		}
	}
	// Those that take long, or stand in each other's way, are apart from each other.
	rng.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	return targets, nil
}

// without leaves out the points whose round trip the program was seen to make, and adds the others to
// what was seen.
func (c recording) without(seen map[string]bool) recording {
	c.points = slices.DeleteFunc(slices.Clone(c.points), func(p planned) bool {
		trip := c.program + "/" + p.name
		was := seen[trip]
		seen[trip] = true
		return was
	})
	return c
}

func pointsOf(recordings []recording) (n int) {
	for _, c := range recordings {
		n += len(c.points)
	}
	return n
}

// notRun says what a walk leaves out.
func notRun(recordings []recording, targets []target) string {
	single, double, run := 0, 0, map[target]bool{}
	for _, c := range recordings {
		single, double = single+len(everything(c)), double+len(pairsOf(c))
	}
	for _, t := range targets {
		run[t] = true
	}
	return fmt.Sprintf("ran %d of %d single faults (-walk=all runs them) and of %d double crashes (-walk=pairs); not run: "+
		"several requests at a time (the soaks), power cuts, broken disks, a provider that breaks its contract", len(run), single, double)
}

// newWalker makes the environment of a walk, until the test ends.
func newWalker(t *testing.T, programs harness.Binaries) *walker {
	t.Helper()
	g := &environment{on: sharedServer(t), programs: programs, sound: binaries(t), dir: t.TempDir(), parallelRuns: parallelRuns}
	t.Cleanup(func() {
		if err := g.close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return &walker{environment: g, report: t.Errorf}
}

// hunt does the run of an address with programs of the caller's choice, and returns what was
// violated in it, and whether it came to its point. Programs that break promises with nothing
// armed are caught once.
func hunt(t *testing.T, programs harness.Binaries, address string) (violations []string, fired bool) {
	t.Helper()
	w := newWalker(t, programs)
	recordings, err := w.recordings(t.Context(), func(scenario, program string) bool {
		return strings.HasPrefix(address, scenario+"/"+program+"/")
	})
	if err != nil {
		return []string{err.Error()}, false
	}
	targets, err := chosen(recordings, address, rand.New(rand.NewPCG(1, 1)))
	must(t, err)
	w.report = func(string, ...any) {}
	if err = w.walk(t.Context(), recordings, targets); err != nil {
		violations = append(violations, err.Error())
	}
	for _, one := range w.done {
		violations, fired = append(violations, one.violations...), one.fired
	}
	return violations, fired
}

// target is one run of the walk: where, on which side and how.
type target struct {
	scenario string
	program  string
	crashAim
}

// String is the address by which a run is replayed. The second crash of a pair is
// a number behind the fault: kill+3.
func (t target) String() string {
	fault := string(t.fault)
	if t.second > 0 {
		fault += "+" + strconv.Itoa(t.second)
	}
	return strings.Join([]string{t.scenario, t.program, t.point.String(), string(t.side), fault}, "/")
}

// isAt reports whether an address is the target's own, or that of its point, or of its
// scenario and program. A second crash has an address of its own alone.
func (t target) isAt(address string) bool {
	recording := t.scenario + "/" + t.program
	return t.String() == address || t.second == 0 && (address == recording || address == recording+"/"+t.point.String())
}

// everything are all runs of a recording with one fault.
func everything(c recording) []target {
	var all []target
	for _, point := range c.points {
		for _, side := range []failpoint.Side{failpoint.Before, failpoint.After} {
			for _, fault := range faultsAt(point.kind, side) {
				all = append(all, c.target(point, side, fault))
			}
		}
	}
	return all
}

func (c recording) target(point planned, side failpoint.Side, fault failpoint.Fault) target {
	return target{c.scenario.name, c.program, crashAim{point: point.crashPoint, behind: point.behind, side: side, fault: fault}}
}

// Of 100 points of a sample so many get a second fault, an error or a pause, and a double crash: a
// crash or a cut comes to each point, what takes longer to some.
const (
	sampledFaults = 13
	sampledPairs  = 3
)

// sampleOf hits one point in so many of a recording, from a random first one, with sides
// and faults that rotate along the recording and from seed to seed, and some of them once
// more.
func sampleOf(c recording, rng *rand.Rand, every int) (sample []target) {
	sides := []failpoint.Side{failpoint.Before, failpoint.After}
	turn := rng.IntN(4)
	for i := rng.IntN(every); i < len(c.points); i += every {
		point, n := c.points[i], i/every+turn
		sample = append(sample, c.target(point, sides[n%2], []failpoint.Fault{faultKill, failpoint.Cut}[n/2%2]))
		side := sides[rng.IntN(2)]
		if slow := faultsAt(point.kind, side)[2:]; rng.IntN(100) < sampledFaults {
			sample = append(sample, c.target(point, side, slow[rng.IntN(len(slow))]))
		}
		if rng.IntN(100) < sampledPairs {
			pair := c.target(point, side, faultKill)
			pair.second = 1 + rng.IntN(2*len(c.points))
			sample = append(sample, pair)
		}
	}
	return sample
}

// secondCrashes is how many points of a recovery all pairs go to, beyond those of
// the recording itself: the recovery starts the program again.
const secondCrashes = 25

// pairsOf are all double crashes of a recording. Those whose second point lies behind
// the recovery's end do not come to it, and are counted.
func pairsOf(c recording) []target {
	var all []target
	for _, point := range c.points {
		for second := 1; second <= len(c.points)+secondCrashes; second++ {
			pair := c.target(point, failpoint.After, faultKill)
			pair.second = second
			all = append(all, pair)
		}
	}
	return all
}
