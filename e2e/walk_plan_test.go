package e2e_test

import (
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/payonce/payonce/internal/robustness/failpoint"
)

// target is one run of the walk: where, on which side and how.
type target struct {
	scenario string
	program  string
	point    failpoint.Point
	side     failpoint.Side
	fault    failpoint.Fault
	second   int // after this point of the recovery it is killed again; 0 for never
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
	course := t.scenario + "/" + t.program
	return t.String() == address || t.second == 0 && (address == course || address == course+"/"+t.point.String())
}

// everything are all runs of a course with one fault.
func everything(c course) []target {
	var all []target
	for _, point := range c.points {
		for _, side := range []failpoint.Side{failpoint.Before, failpoint.After} {
			for _, fault := range failpoint.Faults(point.Kind, side) {
				all = append(all, c.target(point, side, fault))
			}
		}
	}
	return all
}

func (c course) target(point planned, side failpoint.Side, fault failpoint.Fault) target {
	return target{scenario: c.scenario.name, program: c.program, point: point.Point, side: side, fault: fault}
}

// Shares of a sample, of 100 points of it: a crash or a cut comes to each, what takes
// longer to some.
const (
	sampledErrors = 10
	sampledPauses = 3
	sampledPairs  = 3
)

// sampleOf hits one point in so many of a course, from a random first one, with sides
// and faults that rotate along the course and from seed to seed, and some of them once
// more.
func sampleOf(c course, rng *rand.Rand, every int) []target {
	turn := rng.IntN(4)
	var sample []target
	for i := rng.IntN(every); i < len(c.points); i += every {
		point, n := c.points[i], i/every+turn
		side, fault := failpoint.Before, failpoint.Kill
		if n%2 == 1 {
			side = failpoint.After
		}
		if n/2%2 == 1 {
			fault = failpoint.Cut
		}
		sample = append(sample, c.target(point, side, fault))
		side = []failpoint.Side{failpoint.Before, failpoint.After}[rng.IntN(2)]
		if errs := failpoint.Faults(point.Kind, side)[3:]; len(errs) > 0 && rng.IntN(100) < sampledErrors {
			sample = append(sample, c.target(point, side, errs[rng.IntN(len(errs))]))
		}
		if rng.IntN(100) < sampledPauses {
			sample = append(sample, c.target(point, side, failpoint.Pause))
		}
		if rng.IntN(100) < sampledPairs {
			pair := c.target(point, side, failpoint.Kill)
			pair.second = 1 + rng.IntN(2*len(c.points))
			sample = append(sample, pair)
		}
	}
	return sample
}

// secondCrashes is how many points of a recovery all pairs go to, beyond those of
// the course itself: the recovery starts the program again.
const secondCrashes = 25

// pairsOf are all double crashes of a course. Those whose second point lies behind
// the recovery's end do not come to it, and are counted.
func pairsOf(c course) []target {
	var all []target
	for _, point := range c.points {
		for second := 1; second <= len(c.points)+secondCrashes; second++ {
			pair := c.target(point, failpoint.After, failpoint.Kill)
			pair.second = second
			all = append(all, pair)
		}
	}
	return all
}
