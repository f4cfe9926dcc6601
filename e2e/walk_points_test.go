package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/payonce/payonce/internal/testrun"
)

// noPoints is all that a program does and that is no point of a walk, beside its
// polls that find nothing: what a timer or a pool causes comes at any time, so no
// run could be planned for it.
var noPoints = map[string]string{
	"ping":                    "a pool asks whether a connection lives that was idle for a second",
	"close":                   "a driver forgets statements after an error",
	"sync":                    "a driver waits for the end of what failed",
	"inbox.beat":              "the heartbeat says every third of a lease that the holder lives",
	"postgres.EndStuck":       "every 5 s a worker looks for sessions that hold up others",
	"idempotency.expireKeys":  "the retention job deletes what has expired",
	"inbox.DeleteExpired":     "the same",
	"merchants.deleteSecrets": "the same",
}

// workerNoPoints are noPoints of a worker alone.
var workerNoPoints = map[string]string{
	"fulfillment.ListPauses": "a worker reads every second what is paused",
}

// onceOnly are round trips of which only the first in a life is a point: how many
// there are is a matter of time. The balances add what there is, in one page or in
// several. Rings are coalesced, and so are reads of streams. A pool asks each new connection
// whether its server accepts writes.
var onceOnly = []string{
	"ledger.selectStreams",
	"ledger.nextPage",
	"outbox.ringAll",
	"postgres.selectServer",
	"upkeep.selectOriginal",
}

// atStart are polls of a worker of which the first, when it starts, is a point. The later ones
// come at any time, and return a row whether or not they find a message.
var atStart = []string{looksForWork}

// unseen returns what of onceOnly and atStart is the name of no round trip.
func unseen(recordings []recording) []string {
	return slices.DeleteFunc(slices.Concat(onceOnly, atStart), func(name string) bool {
		return slices.ContainsFunc(recordings, func(c recording) bool { return slices.Contains(c.trips, name) })
	})
}

// recording is the round trips of a scenario through a program, in both of its runs.
type recording struct {
	scenario scenario
	program  string
	known    knownTrips
	points   []planned
	unstable []string // came in one recording and not in the other
	trips    []string // the names of all round trips, points or not
}

// planned is a point with the one before it.
type planned struct {
	seenPoint
	behind crashPoint
}

// rest is what a program does when there is nothing to do. It is watched once.
type rest struct {
	once    sync.Once
	err     error
	startup map[string]int // occurrences, by name
	trips   []string       // the names of all round trips
	known   knownTrips
}

// polls reports whether a round trip prepares a poll. It comes with the program's
// start, though not always before the first request.
func (r *rest) polls(name string) bool {
	statement, prepares := strings.CutPrefix(name, "prepare ")
	return prepares && slices.ContainsFunc(slices.Collect(maps.Keys(r.known.polls)), func(poll string) bool {
		for _, setting := range settings {
			poll = strings.TrimPrefix(poll, setting+", ")
		}
		return poll == statement
	})
}

// A worker has come to rest when its most frequent poll has come restPolls times
// and nothing new did: every other poll comes at least once in that time. An api
// polls nothing, and is watched for apiRest.
const (
	restPolls = 12
	apiRest   = 300 * time.Millisecond
)

// awaitPolls waits until some round trip has come restPolls times more, and returns
// what there is then.
func awaitPolls(program string, plan *crashPlan, since map[string]int) (all, empty map[string]int, err error) {
	patience := walkStall
	if program == "api" {
		patience = apiRest
	}
	if !testrun.Within(patience, func() bool {
		all, empty = plan.idle()
		for name, n := range all {
			if n >= since[name]+restPolls {
				return true
			}
		}
		return false
	}) && program != "api" {
		err = fmt.Errorf("no round trip came %d times in %s", restPolls, walkStall)
	}
	return all, empty, err
}

// watchRest starts a program with nothing to do, and counts twice: what it has done
// more often the second time needs no charge.
func (p *testbed) watchRest(ctx context.Context, program string, r *rest) error {
	known := knownTrips{polls: map[string]bool{}, never: map[string]bool{}, once: slices.Concat(onceOnly, atStart)}
	for name := range noPoints {
		known.never[name] = true
	}
	if program == "worker" {
		for name := range workerNoPoints {
			known.never[name] = true
		}
	}
	// What is learned below is for later plans: this one still reads its own.
	plan := newCrashPlan(crashAim{}, knownTrips{never: maps.Clone(known.never), once: known.once}, nil)
	p.arm(program, plan)
	defer p.disarm()
	v := p.victim(program)
	v.live(ctx)
	defer v.end()
	if _, err := v.url(ctx); err != nil {
		return err
	}
	var first map[string]int
	for last := -1; last != len(first); {
		last = len(first)
		all, _, err := awaitPolls(program, plan, first)
		if err != nil {
			return err
		}
		first = all
	}
	second, empty, err := awaitPolls(program, plan, first)
	if err != nil {
		return err
	}
	r.startup, r.known, r.trips = map[string]int{}, known, slices.Collect(maps.Keys(second))
	for name, n := range second {
		switch {
		case known.never[name]:
		case slices.Contains(atStart, name):
			r.startup[name] = 1
		case n == first[name], strings.HasPrefix(name, prepares): // another connection may prepare it later
			r.startup[name] = n
		case empty[name] > 0:
			known.polls[name] = true
		default:
			known.never[name] = true
		}
	}
	return nil
}

// record runs a scenario with nothing armed, twice. Points are what came up both
// times. Those of the program's start are a scenario of their own, since they are
// the same in all.
func (p *testbed) record(ctx context.Context, way recording, r *rest) (own, start recording, err error) {
	var takes [2]map[crashPoint]bool
	var last []seenPoint
	for i := range takes {
		result, err := p.run(ctx, way, crashAim{})
		if err != nil {
			return own, start, err
		}
		if len(result.violations) > 0 {
			return own, start, fmt.Errorf("with nothing armed: %q", result.violations)
		}
		takes[i], last = map[crashPoint]bool{}, result.points
		way.trips = append(way.trips, result.trips...)
		for _, seen := range last {
			takes[i][seen.crashPoint] = true
		}
	}
	way.trips = append(way.trips, r.trips...)
	own, start = way, way
	start.scenario.name = "start"
	behind := crashPoint{}
	for _, seen := range last {
		point := planned{seenPoint: seen, behind: behind}
		switch {
		case !takes[0][seen.crashPoint] || !takes[1][seen.crashPoint]:
			continue // and nothing stands behind what may not come
		case seen.occurrence <= r.startup[seen.name] || r.polls(seen.name):
			start.points = append(start.points, point)
		default:
			own.points = append(own.points, point)
		}
		behind = seen.crashPoint
	}
	for i, take := range takes {
		for point := range take {
			if !takes[1-i][point] {
				own.unstable = append(own.unstable, point.String())
			}
		}
	}
	return own, start, nil
}
