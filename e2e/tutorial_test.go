package e2e_test

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// tutorial are the programs and the variables of a reader who follows the page.
type tutorial struct {
	*deployment
	variables map[string]string
}

// TestTutorial_commands_showWhatThePageShows runs the commands of the tutorial in their order.
// A deployment stands for the demo, whose --keep TestDemo shows. Reads are repeated until
// they are as they are shown. Of a timeline the kinds of its lines are compared, of the audit
// that it finds nothing.
func TestTutorial_commands_showWhatThePageShows(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 2})
	r := tutorial{d, map[string]string{"$API": d.APIs[0].URL(), "$KEY": d.Secrets.API}}
	page := readFile(t, "../docs/tutorial/first-charge.md")
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)\n```\n(?:\n```(?:http)?\n(.*?)```)?").FindAllStringSubmatch(page, -1)
	for _, block := range blocks {
		r.follow(t, block[1], block[2])
	}
	if len(blocks) < 12 {
		t.Errorf("the tutorial has %d commands", len(blocks))
	}
}

func (r tutorial) follow(t *testing.T, command, shown string) {
	t.Helper()
	switch {
	case strings.HasPrefix(command, "export "), strings.HasPrefix(command, "go run ./cmd/payonce demo "):
	case command == "pkill -STOP -x sandbox":
		must(t, r.Sandbox.Pause())
	case command == "pkill -CONT -x sandbox":
		must(t, r.Sandbox.Resume())
	case command == "kill -KILL $WORKER":
		must(t, r.holder(t).Kill())
	case command == "go run ./cmd/payonce audit":
		r.payonce(t, "audit") // exits with 1 if it finds something
	case command == "go run ./cmd/payonce timeline ${CHARGE##*/}":
		r.timeline(t, shown)
	default:
		r.curl(t, command, shown)
	}
}

func (r tutorial) curl(t *testing.T, command, shown string) {
	t.Helper()
	request := readCurl(t, command, r.variables)
	got := r.isAnswered(t, command, request, shown)
	if request.method == http.MethodPost {
		r.variables["$CHARGE"] = got.Header.Get("Location")
	}
}

// timeline waits until every line that is shown is in the charge's timeline, by its kind
// and by what it is about, and keeps the process that holds the message.
func (r tutorial) timeline(t *testing.T, shown string) {
	t.Helper()
	var wanted []string
	for _, line := range regexp.MustCompile(`(?m)^\d{4}-\S+ \S+ +(\w+ +\S.*?)  `).FindAllStringSubmatch(shown, -1) {
		wanted = append(wanted, regexp.MustCompile(` +`).ReplaceAllString(line[1], " "))
	}
	if len(wanted) < 3 {
		t.Fatalf("the page shows %q", wanted)
	}
	lacks, got := "", ""
	if !testrun.Within(testrun.Stall, func() bool {
		got = string(r.payonce(t, "timeline", strings.TrimPrefix(r.variables["$CHARGE"], "/v1/charges/")))
		lacks = ""
		for _, line := range wanted {
			if !strings.Contains(regexp.MustCompile(` +`).ReplaceAllString(got, " "), " "+line+" ") {
				lacks = line
			}
		}
		return lacks == ""
	}) {
		t.Fatalf("the timeline lacks %s:\n%s", lacks, got)
	}
	if holder := regexp.MustCompile(`running .*holder=\S+:(\d+)`).FindStringSubmatch(got); holder != nil {
		r.variables["$WORKER"] = holder[1]
	}
}

// holder is the worker that the timeline named.
func (r tutorial) holder(t *testing.T) *harness.Process {
	t.Helper()
	for _, p := range r.Workers {
		if strconv.Itoa(p.PID()) == r.variables["$WORKER"] {
			return p
		}
	}
	t.Fatalf("no worker is process %q", r.variables["$WORKER"])
	return nil
}
