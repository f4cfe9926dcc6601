package e2e_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/payonce/payonce/internal/robustness/failpoint"
)

// crashPoint is a round trip of the victim, by its name and by its number among those
// of the same name.
type crashPoint struct {
	name       string
	occurrence int // from 1
}

// String is the name, and from the second occurrence on its number: "commit#2".
func (p crashPoint) String() string {
	if p.occurrence <= 1 {
		return p.name
	}
	return p.name + "#" + strconv.Itoa(p.occurrence)
}

// tripKind is what a round trip is made of.
type tripKind string

const (
	connectTrip tripKind = "connect" // a session with the database begins
	sqlTrip     tripKind = "sql"
	httpTrip    tripKind = "http"
)

// The faults at a point, beside those of failpoint. Those that are named by a number are
// errors that the server answers: an SQLSTATE or an HTTP status.
const (
	faultKill  failpoint.Fault = "kill"  // the victim is killed
	faultPause failpoint.Fault = "pause" // the victim is stopped for a while and then continues

	faultSerialization failpoint.Fault = "40001" // in place of the request
	faultDeadlock      failpoint.Fault = "40P01" // in place of the request
	faultDiskFull      failpoint.Fault = "53100" // in place of the request

	faultUnavailable failpoint.Fault = "503" // by a proxy before the HTTP server, after its work
)

// faultsAt are all that can happen at a round trip of a kind on a side. The first
// three are faultKill, failpoint.Cut and faultPause.
func faultsAt(kind tripKind, side failpoint.Side) []failpoint.Fault {
	all := []failpoint.Fault{faultKill, failpoint.Cut, faultPause}
	switch {
	case kind == sqlTrip && side == failpoint.Before:
		return append(all, faultSerialization, faultDeadlock, faultDiskFull, failpoint.Shutdown)
	case kind == sqlTrip:
		return append(all, failpoint.Shutdown)
	case kind == httpTrip && side == failpoint.Before:
		return append(all, failpoint.Broken)
	case kind == httpTrip:
		return append(all, failpoint.Broken, faultUnavailable)
	}
	return all
}

// crashAim is where a plan fires, and how. The zero crashAim never fires.
type crashAim struct {
	point crashPoint
	side  failpoint.Side
	fault failpoint.Fault

	// behind is the point that came before in the recording. A poll looks the same
	// whether or not it will find something, so the plan fires before the first
	// poll that begins after behind has ended.
	behind crashPoint

	// nth fires after the n-th point of any name, from 1, in place of point and side.
	nth int

	// second is the point of the recovery after which a killed program is killed again; 0 for never.
	second int
}

// roundTrip is one round trip, as the plan knows it.
type roundTrip struct {
	name   string
	kind   tripKind
	group  *tripGroup // the transaction that an earlier round trip began; nil if none
	opens  bool       // begins its group
	closes bool       // ends its group
	minor  bool       // repeats what another connection of the pool did: no point

	number int  // occurrence as a point; 0 while it is none
	polls  bool // is a point only if it finds something
}

// tripGroup is a transaction from begin to commit. It is idle until it finds something.
type tripGroup struct {
	begin *roundTrip
	found bool
}

// crashPlan records one life of a victim, numbers its points and fires at most once.
type crashPlan struct {
	aim    crashAim
	inject func(failpoint.Fault)

	mu     sync.Mutex
	trips  []*roundTrip   // points, in the order in which they began; polls when they found something
	begun  map[string]int // points, by name
	done   map[string]int // that have ended
	points int            // that have ended
	hit    bool

	sent     map[string]bool // texts that may be sent once or again
	settings []string        // of the kinds of sessions
	groups   map[*failpoint.Session]*tripGroup
	open     map[*failpoint.Trip]*roundTrip
	calls    map[*failpoint.Call]*roundTrip
}

// newCrashPlan returns a plan. At its aim it calls inject once, while it holds the
// connection: for faultKill, inject kills the victim; for faultPause, it stops the victim and
// returns when the victim continues. inject may be nil.
func newCrashPlan(aim crashAim, inject func(failpoint.Fault)) *crashPlan {
	return &crashPlan{
		aim: aim, inject: inject, begun: map[string]int{}, done: map[string]int{}, sent: map[string]bool{},
		groups: map[*failpoint.Session]*tripGroup{}, open: map[*failpoint.Trip]*roundTrip{}, calls: map[*failpoint.Call]*roundTrip{},
	}
}

// round is the hook of a proxy.
func (p *crashPlan) round(t *failpoint.Trip) failpoint.Fault {
	if t.Side == failpoint.Before {
		return p.send(t)
	}
	p.mu.Lock()
	known := p.open[t]
	delete(p.open, t)
	if t.Idle {
		delete(p.groups, t.Session)
	}
	p.mu.Unlock()
	return p.after(known, t.Rows)
}

// send is called when a request is whole and nothing of it was forwarded.
func (p *crashPlan) send(t *failpoint.Trip) failpoint.Fault {
	p.mu.Lock()
	known := p.trip(t)
	p.open[t] = known
	if known.opens {
		p.groups[t.Session] = &tripGroup{begin: known}
	}
	known.group = p.groups[t.Session]
	p.mu.Unlock()
	fault := p.before(known)
	if fault != failpoint.None && known.closes {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.groups, t.Session) // what is refused is rolled back
	}
	return fault
}

// call is the hook of a gate.
func (p *crashPlan) call(c *failpoint.Call) failpoint.Fault {
	p.mu.Lock()
	known := p.calls[c]
	if known == nil {
		known = &roundTrip{name: requestName(c.Request.Method, c.Request.URL.Path), kind: httpTrip}
		p.calls[c] = known
	}
	p.mu.Unlock()
	if c.Side == failpoint.Before {
		return p.before(known)
	}
	return p.after(known, 1)
}

func (p *crashPlan) before(t *roundTrip) failpoint.Fault {
	p.mu.Lock()
	found := t.group != nil && t.group.found
	t.polls = !found && (t.opens || slices.Contains(polls, t.name))
	idle := t.closes && !found
	if !t.polls && !idle && !t.never() {
		p.count(t)
	}
	return p.decide(p.armed(t, failpoint.Before) && (t.polls && p.behind() || !t.polls && t.number == p.aim.point.occurrence))
}

func (p *crashPlan) after(t *roundTrip, rows int) failpoint.Fault {
	p.mu.Lock()
	if rows > 0 && !t.never() {
		if t.group != nil && !t.group.found {
			t.group.found = true
			if b := t.group.begin; b != t {
				p.count(b)
				if b.number > 0 {
					p.end(b)
				}
			}
		}
		if t.polls && !t.opens {
			p.count(t)
		}
	}
	if t.number > 0 {
		p.end(t)
	}
	aimed := t.opens && t.polls && p.behind() || t.number > 0 && t.number == p.aim.point.occurrence
	again := !p.hit && t.number > 0 && p.aim.nth > 0 && p.points >= p.aim.nth
	return p.decide(p.armed(t, failpoint.After) && aimed || again)
}

func (t *roundTrip) never() bool {
	return t.minor || noPoints[strings.TrimPrefix(t.name, prepares)] != ""
}

func (p *crashPlan) count(t *roundTrip) {
	if p.begun[t.name] > 0 && slices.Contains(onceOnly, t.name) {
		return
	}
	p.begun[t.name]++
	t.number = p.begun[t.name]
	p.trips = append(p.trips, t)
}

func (p *crashPlan) end(t *roundTrip) {
	p.done[t.name]++
	p.points++
}

func (p *crashPlan) armed(t *roundTrip, side failpoint.Side) bool {
	return !p.hit && p.aim.nth == 0 && t.name == p.aim.point.name && !t.never() && side == p.aim.side
}

func (p *crashPlan) behind() bool {
	return p.aim.behind.name == "" || p.done[p.aim.behind.name] >= p.aim.behind.occurrence
}

// decide unlocks the plan and, where it was hit, fires.
func (p *crashPlan) decide(hit bool) failpoint.Fault {
	p.hit = p.hit || hit
	p.mu.Unlock()
	if !hit {
		return failpoint.None
	}
	if p.inject != nil {
		p.inject(p.aim.fault)
	}
	switch p.aim.fault {
	case faultKill:
		return failpoint.Cut
	case faultPause:
		return failpoint.None
	default:
		return p.aim.fault
	}
}

// fired reports whether the plan has fired.
func (p *crashPlan) fired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hit
}

// ended is how many points of the life have ended.
func (p *crashPlan) ended() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.points
}

// planned is a point of a recording.
type planned struct {
	crashPoint

	kind   tripKind
	behind crashPoint
}

// seen are the points of the life so far. A poll comes after what it found, which may have come while
// the poll was in flight.
func (p *crashPlan) seen() (seen []planned) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.trips {
		seen = append(seen, planned{crashPoint: crashPoint{t.name, t.number}, kind: t.kind})
	}
	return seen
}
