package e2e_test

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// TestTutorial_commands_showWhatThePageShows runs the commands of the tutorial in their order.
// A deployment stands for the demo, whose --keep TestDemo shows. Reads are repeated until they are
// as they are shown.
func TestTutorial_commands_showWhatThePageShows(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 2})
	variables := map[string]string{"$API": d.APIs[0].URL(), "$KEY": d.Secrets.API}
	page := readFile(t, "../docs/tutorial/first-charge.md")
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)\n```\n(?:\n```(?:http)?\n(.*?)```)?").FindAllStringSubmatch(page, -1)
	for _, block := range blocks {
		command, shown := block[1], block[2]
		switch {
		case strings.HasPrefix(command, "export "), strings.HasPrefix(command, "go run ./cmd/payonce demo "):
		case command == "pkill -STOP -x sandbox":
			must(t, d.Sandbox.Pause())
		case command == "pkill -CONT -x sandbox":
			must(t, d.Sandbox.Resume())
		case command == "kill -KILL $WORKER":
			isHolder := func(p *harness.Process) bool { return strconv.Itoa(p.PID()) == variables["$WORKER"] }
			must(t, d.Workers[slices.IndexFunc(d.Workers, isHolder)].Kill())
		case command == "go run ./cmd/payonce audit": // it exits with 1 if it finds something
			d.prints(t, shown, "audit")
		case command == "go run ./cmd/payonce timeline ${CHARGE##*/}":
			timeline := d.prints(t, shown, "timeline", path.Base(variables["$CHARGE"]))
			if holder := regexp.MustCompile(`running .*holder=\S+:(\d+)`).FindStringSubmatch(timeline); holder != nil {
				variables["$WORKER"] = holder[1]
			}
		default:
			got := d.isAnswered(t, command, readCurl(t, command, variables), shown)
			if location := got.Header.Get("Location"); location != "" {
				variables["$CHARGE"] = location
			}
		}
	}
	if len(blocks) < 12 {
		t.Errorf("the tutorial has %d commands", len(blocks))
	}
}

// prints waits until the operator's tool prints the first two columns of every line that a page
// shows, without the time before them, and returns what it printed.
func (d *deployment) prints(t *testing.T, shown string, args ...string) (printed string) {
	t.Helper()
	spaces := regexp.MustCompile(` +`)
	plain := func(text string) string { return spaces.ReplaceAllString(masked(text), " ") }
	lines := regexp.MustCompile(`(?m)^(?:\d{4}-\S+ \S+ +)?(\w+:? +\S.*?)  `).FindAllStringSubmatch(masked(shown), -1)
	if len(lines) < 4 {
		t.Fatalf("the page shows %q", lines)
	}
	lacks := func(line []string) bool { return !strings.Contains(plain(printed), plain(line[1])+" ") }
	if !testrun.Within(testrun.Stall, func() bool {
		printed = string(d.payonce(t, args...))
		return !slices.ContainsFunc(lines, lacks)
	}) {
		t.Fatalf("%q prints not what the page shows, as %q:\n%s", args, lines[slices.IndexFunc(lines, lacks)][1], printed)
	}
	return printed
}
