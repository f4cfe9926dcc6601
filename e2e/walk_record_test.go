package e2e_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var updatePoints = flag.Bool("update", false, "with -walk=points: write the crash points of every scenario to testdata/points.txt, and walk none")

// pointsFile lists the points of every scenario, so a commit in which a point vanishes or
// appears changes the file. The order in which points come differs from run to run: they are
// sorted.
const (
	pointsFile   = "testdata/points.txt"
	updateByHand = "go test ./e2e -run 'TestWalk$' -walk=points -update"
	pointsHeader = "# The crash points of each scenario and program. Written by: " + updateByHand + "\n"
)

func (c recording) address() string { return c.scenario.name + "/" + c.program }

// recordedPoints are the points of recordings, as the file has them.
func recordedPoints(recordings []recording) string {
	var b strings.Builder
	b.WriteString(pointsHeader)
	for _, c := range recordings {
		fmt.Fprintf(&b, "\n%s\n", c.address())
		for _, point := range c.sorted() {
			fmt.Fprintf(&b, "  %s\n", point)
		}
	}
	return b.String()
}

// sorted are the points that came up in both runs of a recording.
func (c recording) sorted() (points []string) {
	for _, p := range c.points {
		points = append(points, p.String())
	}
	slices.Sort(points)
	return points
}

// parsePoints reads the text of the file: the points by scenario and program.
func parsePoints(text string) map[string][]string {
	listed, address := map[string][]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch point, indented := strings.CutPrefix(line, "  "); {
		case line == "" || strings.HasPrefix(line, "#"):
		case indented:
			listed[address] = append(listed[address], point)
		default:
			address, listed[line] = line, []string{}
		}
	}
	return listed
}

// changedPoints are a line for each point that vanished from the list or appeared, and for each
// recording of the list that is missing. A point has vanished if it came up
// in no run, and has appeared if it came up in both.
func changedPoints(listed map[string][]string, recordings []recording) (lines []string) {
	missing := maps.Clone(listed)
	for _, c := range recordings {
		delete(missing, c.address())
		points := c.sorted()
		for _, point := range listed[c.address()] {
			if !slices.Contains(points, point) && !slices.Contains(c.unstable, point) {
				lines = append(lines, "- "+c.address()+"/"+point)
			}
		}
		for _, point := range points {
			if !slices.Contains(listed[c.address()], point) {
				lines = append(lines, "+ "+c.address()+"/"+point)
			}
		}
	}
	for _, address := range slices.Sorted(maps.Keys(missing)) {
		lines = append(lines, "- "+address)
	}
	return lines
}

// checkPoints compares the recordings of all scenarios with the file, or writes it.
func checkPoints(t *testing.T, recordings []recording) {
	t.Helper()
	if *updatePoints {
		must(t, os.WriteFile(pointsFile, []byte(recordedPoints(recordings)), 0o600))
		return
	}
	if lines := changedPoints(parsePoints(readFile(t, pointsFile)), recordings); len(lines) > 0 {
		t.Errorf("the crash points differ from %s (- vanished, + appeared). If that is meant: %s\n%s", pointsFile, updateByHand, strings.Join(lines, "\n"))
	}
}
