package e2e_test

import (
	"context"
	"fmt"
	"math"
	"slices"
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
	"fulfillment.ListPauses":  "a worker reads every second what is paused",
}

// polls are round trips that a worker repeats all the time. They are points only when they find
// something.
var polls = []string{"begin", "commit", "ledger.nextPage", "outbox.selectPage"}

// onceOnly are round trips of which only the first in a life is a point: how many
// there are is a matter of time. The balances add what there is, in one page or in
// several. Rings are coalesced, and so are reads of streams. A pool asks each new connection
// whether its server accepts writes. A worker's looks for work come at any time but for the first,
// and return a row whether or not they find a message.
var onceOnly = []string{
	looksForWork,
	"ledger.selectStreams",
	"ledger.nextPage",
	"outbox.ringAll",
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

// planned is a point with the one before it.
type planned struct {
	seenPoint
	behind crashPoint
}

// rest is what a program does when there is nothing to do. It is watched once.
type rest struct {
	once    sync.Once
	err     error
	startup map[string]int // round trips, by name
}

// A worker has come to rest when each of its polls has come restPolls times. An api polls nothing,
// and is watched for apiRest.
const (
	restPolls = 3
	apiRest   = 300 * time.Millisecond
)

// watchRest starts a program with nothing to do.
func (p *testbed) watchRest(ctx context.Context, program string, r *rest) error {
	plan := newCrashPlan(crashAim{}, nil)
	p.arm(program, plan)
	defer p.disarm()
	v := p.victim(program)
	v.live(ctx)
	defer v.end()
	if _, err := v.url(ctx); err != nil {
		return err
	}
	if program == "api" {
		pause(ctx, apiRest)
	} else if !testrun.Within(walkStall, func() bool {
		all := plan.counts()
		return !slices.ContainsFunc(polls, func(poll string) bool { return all[poll] < restPolls })
	}) {
		return fmt.Errorf("not each poll came %d times in %s", restPolls, walkStall)
	}
	r.startup = plan.counts()
	r.startup[looksForWork] = min(1, r.startup[looksForWork])
	for _, poll := range polls {
		delete(r.startup, poll)
		r.startup[prepares+poll] = math.MaxInt // it comes with the start, though not always before the first request
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
		for _, seen := range last {
			takes[i][seen.crashPoint] = true
		}
	}
	own, start = way, way
	start.scenario.name = "start"
	behind := crashPoint{}
	for _, seen := range last {
		point := planned{seenPoint: seen, behind: behind}
		switch {
		case !takes[0][seen.crashPoint] || !takes[1][seen.crashPoint]:
			continue // and nothing stands behind what may not come
		case seen.occurrence <= r.startup[seen.name]:
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
