package e2e_test

import (
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

var walkWhat = flag.String("walk", "", "the crash walk: distinct, points, all, or addresses, separated by |: scenario/program, scenario/program/point or scenario/program/point/side/fault; a sample where empty")

// sampleSize is about how many points of a recording a sample hits. It takes one scenario and program, by the seed.
// Continuous integration walks to every round trip.
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
	w := newWalker(t, made(t, programs))
	wanted := recordingsOf(*walkWhat)
	if *walkWhat == "" {
		w.parallelRuns = sampleParallelRuns
		rng := rand.New(rand.NewPCG(seed, 1))
		one := scenarios()[rng.IntN(len(scenarios()))]
		by := one.programs[rng.IntN(len(one.programs))]
		wanted = func(scenario, program string) bool { return program == by && scenario == one.name }
		t.Logf("sampled: %s/%s; not run: all others (-walk=points runs every point of every scenario)", one.name, by)
	}
	recordings, err := w.recordings(t.Context(), wanted)
	must(t, err)
	show(t, recordings)
	if everyScenario := []string{"distinct", "points", "all"}; slices.Contains(everyScenario, *walkWhat) {
		checkPoints(t, recordings)
	}
	if *updatePoints {
		t.Logf("wrote %s in %.1f s", pointsFile, time.Since(begun).Seconds())
		return
	}
	targets, err := chosen(recordings, *walkWhat, rand.New(rand.NewPCG(seed, 0)))
	must(t, err)
	t.Logf("made %d recordings in %.1f s; -seed=%d", len(recordings), time.Since(begun).Seconds(), seed)
	err = w.walk(t.Context(), recordings, targets, func(at target, violation string) {
		t.Errorf("%s: %s; repeat: go test ./e2e -run 'TestWalk$' -walk='%s'", at, violation, at)
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("the crash walk, -seed=%d: %d runs, %d at a time, in %.1f s, some of them double crashes; not run: other faults (-walk=all), "+
		"several requests at a time (the soaks), power cuts, broken disks, a provider that breaks its contract",
		seed, len(targets), w.parallelRuns, time.Since(begun).Seconds())
}

// recordingsOf are those that a walk needs.
func recordingsOf(what string) func(scenario, program string) bool {
	return func(scenario, program string) bool {
		return !strings.Contains(what, "/") || slices.ContainsFunc(strings.Split(what, "|"), func(address string) bool {
			return strings.HasPrefix(address+"/", scenario+"/"+program+"/")
		})
	}
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
		case "":
			targets = append(targets, sampleOf(c, rng, max(1, len(c.points)/sampleSize))...)
		case "points":
			targets = append(targets, sampleOf(c, rng, 1)...)
		case "distinct":
			c = c.without(seen)
			targets = append(append(targets, sampleOf(c, rng, 1)...), refusalsOf(c, rng)...)
		default:
			for address := range strings.SplitSeq(what, "|") {
				first, second, _ := strings.Cut(address, "+")
				for _, t := range everything(c) {
					if t.isAt(first) {
						t.second, _ = strconv.Atoi(second)
						targets = append(targets, t)
					}
				}
			}
		}
	}
	for address := range strings.SplitSeq(what, "|") {
		if len(targets) == 0 || strings.Contains(address, "/") && !slices.ContainsFunc(targets, func(t target) bool { return t.isAt(address) }) {
			return nil, fmt.Errorf("-walk=%s: neither distinct, points, all nor a run", address)
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

// hunt does the run of an address with programs of the caller's choice, and returns what was
// violated in it. Programs that break promises with nothing armed are caught once.
func hunt(t *testing.T, programs harness.Binaries, address string) (violations []string) {
	t.Helper()
	w := newWalker(t, programs)
	recordings, err := w.recordings(t.Context(), recordingsOf(address))
	if err != nil {
		return []string{err.Error()}
	}
	targets, err := chosen(recordings, address, testrun.Rand(t))
	must(t, err)
	err = w.walk(t.Context(), recordings, targets, func(_ target, violation string) { violations = append(violations, violation) })
	if err != nil {
		violations = append(violations, err.Error())
	}
	return violations
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
// scenario and program.
func (t target) isAt(address string) bool {
	recording := t.scenario + "/" + t.program
	return slices.Contains([]string{t.String(), recording, recording + "/" + t.point.String()}, address)
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

// refusalsOf refuse every other point, from a random one of the first two on, with an error of its server.
func refusalsOf(c recording, rng *rand.Rand) (refusals []target) {
	for i := rng.IntN(2); i < len(c.points); i += 2 {
		if errors := faultsAt(c.points[i].kind, failpoint.Before)[3:]; len(errors) > 0 {
			refusals = append(refusals, c.target(c.points[i], failpoint.Before, errors[rng.IntN(len(errors))]))
		}
	}
	return refusals
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
