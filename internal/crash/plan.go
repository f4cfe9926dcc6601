package crash

import (
	"slices"
	"strings"
	"sync"
)

// Kind is what a round trip is made of.
type Kind string

// The kinds of round trips.
const (
	Connect Kind = "connect" // a session with the database begins
	SQL     Kind = "sql"
	HTTP    Kind = "http"
)

// Aim is where a plan strikes, and how. The zero Aim never strikes.
type Aim struct {
	Point
	Side  Side
	Fault Fault

	// Behind is the point that came before in the recording. A poll looks the same
	// whether or not it will find something, so before one the plan strikes at the
	// first that begins after Behind has ended.
	Behind Point

	// Nth strikes after the n-th point of whatever name, from 1, in place of Point
	// and Side.
	Nth int
}

// Known says what is known of a program's round trips.
type Known struct {
	// Polls are names of requests that a program makes again and again, and that
	// are points only when they find something.
	Polls map[string]bool
	// Never are names that are no points: work of a timer, which comes at any time.
	Never map[string]bool
}

// Plan watches one life of a victim, numbers its points and strikes at most once.
type Plan struct {
	aim    Aim
	known  Known
	strike func(Fault)

	mu       sync.Mutex
	trips    []*trip
	begun    map[string]int // points, by name
	ended    map[string]int
	points   int // that have ended
	texts    map[string]bool
	sessions []string
	fired    bool
}

// NewPlan returns a plan. When it comes to its aim it calls strike, once, with
// the connection held: for Kill it kills the victim, for Pause it stops it and
// returns when the victim goes on. strike may be nil.
func NewPlan(aim Aim, known Known, strike func(Fault)) *Plan {
	return &Plan{
		aim: aim, known: known, strike: strike,
		begun: map[string]int{}, ended: map[string]int{}, texts: map[string]bool{},
	}
}

// trip is one round trip.
type trip struct {
	name   string
	kind   Kind
	group  *group // of a transaction that was begun by itself; nil if none
	opens  bool   // begins its group
	closes bool   // ends its group
	minor  bool   // repeats what pools repeat: no point
	rows   int    // that the answer's last statement gave or changed

	number int // occurrence as a point; 0 while it is none
	polls  bool
}

// group is a transaction from begin to commit. One that found nothing was idle.
type group struct {
	begin *trip
	found bool
}

// verdict is what an instrument does with a round trip.
type verdict int

const (
	pass   verdict = iota
	drop           // the connection ends: nothing is forwarded or delivered
	refuse         // the plan's fault is answered
)

// before is asked when a request is whole and nothing of it was forwarded.
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
	hit := p.armed(t, Before) && (t.polls && p.behind() || !t.polls && t.number == p.aim.Occurrence)
	return p.decide(hit)
}

// after is asked when the whole answer is here, whose last statement gave or
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
	hit := p.armed(t, After) && (t.opens && t.polls && p.behind() || t.number > 0 && t.number == p.aim.Occurrence)
	hit = hit || !p.fired && t.number > 0 && p.aim.Nth > 0 && p.points >= p.aim.Nth
	return p.decide(hit)
}

func (p *Plan) never(t *trip) bool {
	return t.minor || p.known.Never[strings.TrimPrefix(t.name, prepares)]
}

// prepares is how the names of round trips begin that only prepare statements.
const prepares = "prepare "

func (p *Plan) count(t *trip) {
	p.begun[t.name]++
	t.number = p.begun[t.name]
}

// found counts a poll that has found something. Its place is behind what it found,
// which may have come while it was under way.
func (p *Plan) found(t *trip) {
	p.count(t)
	p.trips = append(slices.DeleteFunc(p.trips, func(other *trip) bool { return other == t }), t)
}

func (p *Plan) end(t *trip) {
	p.ended[t.name]++
	p.points++
}

func (p *Plan) armed(t *trip, side Side) bool {
	return !p.fired && p.aim.Nth == 0 && t.name == p.aim.Name && !p.never(t) && side == p.aim.Side
}

func (p *Plan) behind() bool {
	return p.aim.Behind.Name == "" || p.ended[p.aim.Behind.Name] >= p.aim.Behind.Occurrence
}

// decide unlocks the plan and, where it was hit, strikes.
func (p *Plan) decide(hit bool) verdict {
	p.fired = p.fired || hit
	p.mu.Unlock()
	if !hit {
		return pass
	}
	if p.strike != nil {
		p.strike(p.aim.Fault)
	}
	switch p.aim.Fault {
	case Kill, Cut:
		return drop
	case Pause:
		return pass
	default:
		return refuse
	}
}

// Fired tells whether the plan has struck.
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

// Idle are the names of round trips, however often they came, and how many of
// each came back with nothing.
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

// fresh are those of the texts that this life has not sent before.
func (p *Plan) fresh(texts []string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var unseen []string
	for _, text := range texts {
		if !p.texts[text] {
			p.texts[text] = true
			unseen = append(unseen, text)
		}
	}
	return unseen
}

// session numbers the sorts of sessions that a life opens, by their settings, in
// the order of their first.
func (p *Plan) session(settings string) (number int, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.sessions, settings); i >= 0 {
		return i + 1, false
	}
	p.sessions = append(p.sessions, settings)
	return len(p.sessions), true
}

// isControl tells whether a statement's name is one of transaction control.
func isControl(name string) (opens, closes bool) {
	verb, _, _ := strings.Cut(name, " ")
	switch verb {
	case "begin", "start":
		return true, false
	case "commit", "rollback", "end", "abort":
		return false, true
	}
	return false, false
}
