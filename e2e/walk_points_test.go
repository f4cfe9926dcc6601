package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/robustness/failpoint"
)

// noPoints is all that a program does and that is no point of a walk, beside its
// polls that find nothing: what a timer or a pool causes comes at any time, so no
// run could be planned for it.
var noPoints = map[string]string{
	"ping":                   "a pool asks whether a connection lives that was idle for a second",
	"sync":                   "a driver waits for the end of what failed, or forgets statements",
	"inbox.beat":             "the heartbeat says every third of a lease that the holder lives",
	"postgres.EndStuck":      "every 5 s a worker looks for sessions that hold up others",
	"idempotency.expireKeys": "the retention job deletes what has expired",
	"inbox.DeleteExpired":    "the same",
	"operate.ListPauses":     "a worker reads every two seconds what is paused",
}

// polls are round trips that a worker repeats all the time. They are points only when they find
// something.
var polls = []string{"begin", "commit", "books.nextPage", "outbox.selectPage"}

// onceOnly are round trips of which only the first in a life is a point: how many
// there are is a matter of time. The balances add what there is, in one page or in
// several. Rings are coalesced, and so are reads of streams. A pool asks each new connection
// whether its server accepts writes. A worker's looks for work come at any time but for the first,
// and return a row whether or not they find a message.
var onceOnly = []string{
	looksForWork,
	"ledger.selectStreams",
	"books.nextPage",
	"doorbell.ringAll",
	"postgres.selectServer",
	"upkeep.selectOriginal",
}

// recording is the round trips of a scenario through a program, in both of its runs.
type recording struct {
	scenario scenario
	program  string
	points   []planned
	unstable []string // came in one recording and not in the other
}

// includes reports whether a point comes with a program's start, of which this is the recording. The
// preparation of a poll does, though not always before the first request.
func (c *recording) includes(point planned) bool {
	poll, prepared := strings.CutPrefix(point.name, prepares)
	return prepared && slices.Contains(polls, poll) || has(c.points, point) || slices.Contains(c.unstable, point.String())
}

func has(points []planned, point planned) bool {
	return slices.ContainsFunc(points, func(p planned) bool { return p.crashPoint == point.crashPoint })
}

// record does two takes with nothing armed. Points are what came up both times. Those of the program's
// start are a scenario of their own, since they are the same in all.
func (c *recording) record(start *recording, do func() (runResult, error)) error {
	var takes [2][]planned
	for i := range takes {
		result, err := do()
		if err == nil && len(result.violations) > 0 {
			err = fmt.Errorf("with nothing armed: %q", result.violations)
		}
		if err != nil {
			return fmt.Errorf("record %s/%s: %w", c.scenario.name, c.program, err)
		}
		takes[i] = result.points
	}
	behind := crashPoint{}
	for _, point := range takes[1] {
		point.behind = behind
		switch {
		case !has(takes[0], point):
			c.unstable = append(c.unstable, point.String())
			continue // and nothing stands behind what may not come
		case start == nil || !start.includes(point):
			c.points = append(c.points, point)
		}
		behind = point.crashPoint
	}
	for _, point := range takes[0] {
		if !has(takes[1], point) {
			c.unstable = append(c.unstable, point.String())
		}
	}
	return nil
}

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
	var text strings.Builder
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
		text.WriteString(title + strings.Join(points, "\n") + "\n")
		if diff := cmp.Diff(want, points); diff != "" && !*updatePoints {
			t.Errorf("the crash points of%sdiffer from %s (- vanished, + appeared). If that is meant: %s\n%s", title, pointsFile, updateByHand, diff)
		}
	}
	for _, name := range slices.Concat(onceOnly, polls) {
		if !strings.Contains(text.String(), name) {
			t.Errorf("no point has the name %s, of onceOnly or polls", name)
		}
	}
	if *updatePoints {
		must(t, os.WriteFile(pointsFile, []byte(pointsHeader+text.String()), 0o600))
	} else if n := strings.Count(listed, "\n\n"); n != len(recordings) {
		t.Errorf("%s lists %d recordings, and there are %d", pointsFile, n, len(recordings))
	}
}

// prepares begins the names of round trips that only prepare statements.
const prepares = "prepare "

// trip names a round trip with the database.
func (p *crashPlan) trip(t *failpoint.Trip) *roundTrip {
	trip := &roundTrip{kind: sqlTrip, opens: t.Opens, closes: t.Closes}
	kind := slices.Index(p.settings, t.Session.Settings)
	switch {
	case t.Connects:
		trip.kind, trip.minor = connectTrip, kind >= 0
		if kind < 0 {
			kind = len(p.settings)
			p.settings = append(p.settings, t.Session.Settings)
		}
		trip.name = "connect"
	case len(t.Executed) > 0:
		trip.name = batchName(names(t.Executed))
		// Every connection of a pool may begin with it.
		trip.minor = len(t.Executed) == 1 && strings.HasPrefix(trip.name, "set ") && len(p.fresh(t.Executed)) == 0
	case len(t.Prepared) > 0:
		trip.name, trip.minor = p.preparation(t.Prepared)
	default:
		trip.name = "sync"
	}
	if kind > 0 && (t.Connects || t.Opens || t.Closes) {
		trip.name += " (session " + strconv.Itoa(kind+1) + ")"
	}
	return trip
}

// preparation names a round trip that only prepares statements, by those that no
// connection of this life has prepared before: which connection does so first is
// chance. Which batch is the first to set something is chance too, so a query that
// sets something is no name.
func (p *crashPlan) preparation(statements []string) (name string, minor bool) {
	stable := func(statements []string) []string {
		return slices.DeleteFunc(names(statements), func(name string) bool { return slices.Contains(settings, name) })
	}
	fresh := stable(p.fresh(statements))
	all := names(statements)
	if len(fresh) == 0 || slices.Equal(all, []string{looksForWork}) || slices.Equal(fresh, []string{claims}) {
		return prepares + batchName(stable(statements)), true
	}
	return prepares + batchName(fresh), false
}

// fresh returns those of the texts that this life has not sent before.
func (p *crashPlan) fresh(texts []string) (unseen []string) {
	for _, text := range texts {
		if !p.sent[text] {
			p.sent[text] = true
			unseen = append(unseen, text)
		}
	}
	return unseen
}

// ours matches the name that a statement of ours begins with.
var ours = regexp.MustCompile(`^\s*-- (\S+)\n`)

// statementName is the name of a statement of ours, and the first word of any other, such as
// begin, commit and listen; of set the second too.
func statementName(sql string) string {
	if name := ours.FindStringSubmatch(sql); name != nil {
		return name[1]
	}
	words := strings.Fields(strings.ToLower(strings.TrimPrefix(sql, "--"))) // the driver's ping is a comment
	if len(words) > 1 && words[0] == "set" {
		return "set " + words[1]
	}
	return words[0]
}

// Names of what a processor sends by its own timetable: what goes along with it is a matter of time.
const (
	looksForWork = "inbox.readNext" // and repairs at times, and claims where a slot is free
	claims       = "inbox.claimDue"
)

const awaitsAnswer = "groupcommit.awaitAnswer"

// settings are statements that set something for their transaction.
var settings = []string{"postgres.setMerchant", "groupcommit.setTenant", "groupcommit.setLockTimeout", "inbox.promoteStranded"}

// names leaves out the query that a commit sends before statements with results, and what goes along
// by chance.
func names(statements []string) (names []string) {
	for _, sql := range statements {
		if name := statementName(sql); name != awaitsAnswer {
			names = append(names, name)
		}
	}
	if slices.Contains(names, looksForWork) {
		return []string{looksForWork}
	}
	if len(names) > 1 {
		names = slices.DeleteFunc(names, func(name string) bool { return name == claims })
	}
	return names
}

// batchName joins the names of statements, with the number of equal neighbours.
func batchName(statements []string) string {
	var b strings.Builder
	for i := 0; i < len(statements); {
		n := 1
		for i+n < len(statements) && statements[i+n] == statements[i] {
			n++
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(statements[i])
		if n > 1 {
			b.WriteString(" ×")
			b.WriteString(strconv.Itoa(n))
		}
		i += n
	}
	return b.String()
}

// identifier is a part of a path that names one object and no kind. It is random, and one in
// hundreds has no digit.
var identifier = regexp.MustCompile(`^[a-z]+_[0-9A-Za-z]*[0-9A-Z][0-9A-Za-z]*$`)

// requestName is a request's method and path, with :id for identifiers.
func requestName(method, path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if identifier.MatchString(part) {
			parts[i] = ":id"
		}
	}
	return method + " " + strings.Join(parts, "/")
}
