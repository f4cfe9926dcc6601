package e2e_test

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// checkPoints compares the recordings of all scenarios with the file, or writes it. A point that came
// up in one run of a recording and not in the other is one where the file lists it.
func checkPoints(t *testing.T, recordings []recording) {
	t.Helper()
	listed := readFile(t, pointsFile)
	text := pointsHeader
	for _, c := range recordings {
		title := "\n" + c.scenario.name + "/" + c.program + "\n"
		_, section, _ := strings.Cut(listed, title)
		section, _, _ = strings.Cut(section, "\n\n")
		want := strings.Split(strings.TrimSuffix(section, "\n"), "\n")
		var points []string
		for _, p := range c.points {
			points = append(points, "  "+p.String())
		}
		for _, p := range c.unstable {
			if slices.Contains(want, "  "+p) && !*updatePoints {
				points = append(points, "  "+p)
			}
		}
		slices.Sort(points)
		text += title + strings.Join(points, "\n") + "\n"
		if diff := cmp.Diff(want, points); diff != "" && !*updatePoints {
			t.Errorf("the crash points of%sdiffer from %s (- vanished, + appeared). If that is meant: %s\n%s", title, pointsFile, updateByHand, diff)
		}
	}
	for _, name := range slices.Concat(onceOnly, polls) {
		if !strings.Contains(text, name) {
			t.Errorf("no point has the name %s, of onceOnly or polls", name)
		}
	}
	if *updatePoints {
		must(t, os.WriteFile(pointsFile, []byte(text), 0o600))
	} else if n := strings.Count(listed, "\n\n"); n != len(recordings) {
		t.Errorf("%s lists %d recordings, and there are %d", pointsFile, n, len(recordings))
	}
}
