package failpoint

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Aim is where a plan fires, and how. The zero Aim never fires.
type Aim struct {
	Point
	Side  Side
	Fault Fault

	// Behind is the point that came before in the recording. A poll looks the same
	// whether or not it will find something, so the plan fires before the first
	// poll that begins after Behind has ended.
	Behind Point

	// Nth fires after the n-th point of any name, from 1, in place of Point and
	// Side.
	Nth int

	// Batch fires at the first batch of at least so many statements, in place of
	// Point; nil for none.
	Batch *int
}

// Known says what is known of a program's round trips.
type Known struct {
	// Polls are names of requests that a program repeats all the time. They are
	// points only when they find something.
	Polls map[string]bool
	// Never are names that are no points: work of a timer, which comes at any time.
	Never map[string]bool
}

// Watch holds the plan for the present life of one victim. A connection keeps the
// plan under which it began, so requests of a killed process are not counted for
// its successor.
type Watch struct{ plan atomic.Pointer[Plan] }

// NewWatch returns a watch with a plan that never fires.
func NewWatch() *Watch {
	w := &Watch{}
	w.Set(NewPlan(Aim{}, Known{}, nil))
	return w
}

// Set puts a plan in place, for connections that begin from now on.
func (w *Watch) Set(p *Plan) { w.plan.Store(p) }

// verdict is what happens to a round trip.
type verdict int

const (
	pass   verdict = iota
	drop           // the connection ends: nothing is forwarded or delivered
	refuse         // the trip's fault is answered
)

// trip is one round trip.
type trip struct {
	name     string
	kind     Kind
	group    *group // the transaction that an earlier round trip began; nil if none
	opens    bool   // begins its group
	closes   bool   // ends its group
	minor    bool   // repeats what another connection of the pool did: no point
	executes int    // statements of a batch; negative for what is no batch
	rows     int    // that the answer's last statement returned or changed

	number int   // occurrence as a point; 0 while it is none
	polls  bool  // is a point only if it finds something
	fault  Fault // of a verdict to refuse
	aimed  bool  // is the batch at which the plan fires
}

// group is a transaction from begin to commit. It is idle until it finds something.
type group struct {
	begin *trip
	found bool
}

// Plan records one life of a victim, numbers its points and fires at most once.
type Plan struct {
	known  Known
	inject func(Fault)

	mu     sync.Mutex
	aim    Aim
	trips  []*trip
	begun  map[string]int // points, by name
	ended  map[string]int
	points int // that have ended
	fired  bool

	sent     map[string]bool // texts that may be sent once or again
	sessions []string        // settings of the kinds of sessions
}

// NewPlan returns a plan. At its aim it calls inject once, while it holds the
// connection: for Kill, inject kills the victim; for Pause, it stops the victim and
// returns when the victim continues. inject may be nil.
func NewPlan(aim Aim, known Known, inject func(Fault)) *Plan {
	return &Plan{aim: aim, known: known, inject: inject, begun: map[string]int{}, ended: map[string]int{}, sent: map[string]bool{}}
}

// fresh returns those of the texts that this life has not sent before.
func (p *Plan) fresh(texts []string) (unseen []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, text := range texts {
		if !p.sent[text] {
			p.sent[text] = true
			unseen = append(unseen, text)
		}
	}
	return unseen
}

// session numbers the kinds of sessions of a life by their settings.
func (p *Plan) session(settings string) (number int, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.sessions, settings); i >= 0 {
		return i + 1, false
	}
	p.sessions = append(p.sessions, settings)
	return len(p.sessions), true
}

// before is called when a request is whole and nothing of it was forwarded.
func (p *Plan) before(t *trip) verdict {
	p.mu.Lock()
	p.trips = append(p.trips, t)
	if t.opens && t.group != nil {
		t.group.begin = t
	}
	found := t.group != nil && t.group.found
	t.polls = !found && (t.opens || p.known.Polls[t.name])
	idle := t.closes && !found
	if !t.polls && !idle && !p.never(t) {
		p.count(t)
	}
	if p.aim.Batch != nil && !p.fired && t.executes >= *p.aim.Batch {
		t.aimed, p.fired = true, true
	}
	hit := t.aimed && p.aim.Side == Before ||
		p.armed(t, Before) && (t.polls && p.behind() || !t.polls && t.number == p.aim.Occurrence)
	return p.decide(t, hit)
}

// after is called when the whole answer is here, whose last statement returned or
// changed so many rows, and nothing of it was delivered.
func (p *Plan) after(t *trip, rows int) verdict {
	p.mu.Lock()
	t.rows = rows
	if t.rows > 0 && !p.never(t) {
		if t.group != nil && !t.group.found {
			t.group.found = true
			if b := t.group.begin; b != nil && b != t {
				p.found(b)
				p.end(b)
			}
		}
		if t.polls && !t.opens {
			p.found(t)
		}
	}
	if t.number > 0 {
		p.end(t)
	}
	hit := t.aimed ||
		p.armed(t, After) && (t.opens && t.polls && p.behind() || t.number > 0 && t.number == p.aim.Occurrence) ||
		!p.fired && t.number > 0 && p.aim.Nth > 0 && p.points >= p.aim.Nth
	return p.decide(t, hit)
}

func (p *Plan) never(t *trip) bool {
	return t.minor || p.known.Never[strings.TrimPrefix(t.name, prepares)]
}

func (p *Plan) count(t *trip) {
	p.begun[t.name]++
	t.number = p.begun[t.name]
}

// found counts a poll that has found something. It is listed after what it found,
// which may have come while the poll was in flight.
func (p *Plan) found(t *trip) {
	p.count(t)
	p.trips = append(slices.DeleteFunc(p.trips, func(other *trip) bool { return other == t }), t)
}

func (p *Plan) end(t *trip) {
	p.ended[t.name]++
	p.points++
}

func (p *Plan) armed(t *trip, side Side) bool {
	return !p.fired && p.aim.Nth == 0 && p.aim.Batch == nil && t.name == p.aim.Name && !p.never(t) && side == p.aim.Side
}

func (p *Plan) behind() bool {
	return p.aim.Behind.Name == "" || p.ended[p.aim.Behind.Name] >= p.aim.Behind.Occurrence
}

// decide unlocks the plan and, where it was hit, fires.
func (p *Plan) decide(t *trip, hit bool) verdict {
	p.fired = p.fired || hit
	fault := p.aim.Fault
	p.mu.Unlock()
	if !hit {
		return pass
	}
	if p.inject != nil {
		p.inject(fault)
	}
	switch fault {
	case Kill, Cut:
		return drop
	case Pause:
		return pass
	default:
		t.fault = fault
		return refuse
	}
}

// Fired reports whether the plan has fired.
func (p *Plan) Fired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fired
}

// Ended is how many points of the life have ended.
func (p *Plan) Ended() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.points
}

// Seen is a point of a recording.
type Seen struct {
	Point
	Kind Kind
	Poll bool // found something this time
	// InTransaction says that it is a part of a transaction of several round trips.
	InTransaction bool
}

// Points are those of the life so far, in the order in which they began; polls in
// the order in which they ended.
func (p *Plan) Points() []Seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	var seen []Seen
	for _, t := range p.trips {
		if t.number > 0 {
			seen = append(seen, Seen{
				Point: Point{Name: t.name, Occurrence: t.number}, Kind: t.kind, Poll: t.polls, InTransaction: t.group != nil,
			})
		}
	}
	return seen
}

// Idle counts the round trips by name, and those of them that returned no row.
func (p *Plan) Idle() (all, empty map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all, empty = map[string]int{}, map[string]int{}
	for _, t := range p.trips {
		all[t.name]++
		if t.rows == 0 {
			empty[t.name]++
		}
	}
	return all, empty
}
