package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Gatherer lets reads that are asked for at the same moment share a round trip, as
// the commits of a DB do. What is read has to be one statement for many questions.
//
// There is one lane. Who finds it free reads at once: nobody waits for company, or for
// a timer. Who does not waits, and whoever has used the lane hands it to the first who
// waits, which asks the questions of the others with its own. There is no goroutine of
// its own, and nothing to close.
//
// A question is sent after it was asked, never before: what was committed until then
// counts. Nothing is remembered from one read to the next.
type Gatherer[Q, A any] struct {
	read func(ctx context.Context, questions []Q) (answers []A, err error)

	places   chan struct{} // one for each read
	laneTime time.Duration

	mu      sync.Mutex
	used    bool           // the lane
	waiting []*asked[Q, A] // in the order of their arrival; nobody while the lane is free
}

// maxQuestions bounds one read.
const maxQuestions = 64

// readDeadline bounds a read that nobody may cancel, since others wait for it too.
const readDeadline = 15 * time.Second

// NewGatherer gathers for read, which answers each of 1 to 64 questions, in their
// order. Its context has the values of one of those who ask, and a deadline of its
// own, or is that of the only one. Should reads stand still, so many are under way at
// a time, and no more; 20 where that is zero.
func NewGatherer[Q, A any](most int, read func(ctx context.Context, questions []Q) (answers []A, err error)) *Gatherer[Q, A] {
	if most <= 0 {
		most = defaultConns
	}
	return &Gatherer[Q, A]{read: read, places: make(chan struct{}, most), laneTime: laneTime}
}

// asked is a question of one caller.
type asked[Q, A any] struct {
	question Q
	heard    chan told[A] // has room for one
}

// told is what one who waited is told, once.
type told[A any] struct {
	turn   turn
	answer A
	err    error
}

// Ask returns the answer to a question, or the error of the read: ErrNoConnection as
// reads have it, also for a context that has ended by its deadline. For one that was
// canceled, also while the read was under way, it is that. Whatever else it fails of
// is of this question alone.
func (g *Gatherer[Q, A]) Ask(ctx context.Context, question Q) (answer A, err error) {
	if ctx.Err() == nil {
		answer, err = g.ask(ctx, question)
	}
	if ended := ctx.Err(); ended != nil { // whoever is gone goes no further
		return *new(A), named(nil, ended)
	}
	return answer, err
}

func (g *Gatherer[Q, A]) ask(ctx context.Context, question Q) (answer A, err error) {
	a := &asked[Q, A]{question: question, heard: make(chan told[A], 1)}
	h := told[A]{turn: leads}
	if !g.takeLane(a) {
		select {
		case h = <-a.heard:
		case <-ctx.Done():
			g.leave(a)
			return answer, ctx.Err()
		}
	}
	if h.turn == leads {
		g.lead(ctx, a)
		h = <-a.heard
	}
	if h.turn == goesAlone {
		return g.alone(ctx, question)
	}
	return h.answer, h.err
}

// alone reads for one question. It takes a place as all reads do: what fails for many
// must not have them all ask at once.
func (g *Gatherer[Q, A]) alone(ctx context.Context, question Q) (answer A, err error) {
	select {
	case g.places <- struct{}{}:
		defer func() { <-g.places }()
	case <-ctx.Done():
		return answer, ctx.Err()
	}
	answers, err := g.answers(ctx, []Q{question})
	if err != nil {
		return answer, err
	}
	return answers[0], nil
}

// answers are one for each question.
func (g *Gatherer[Q, A]) answers(ctx context.Context, questions []Q) ([]A, error) {
	answers, err := g.read(ctx, questions)
	if err == nil && len(answers) != len(questions) {
		err = fmt.Errorf("%d questions have %d answers", len(questions), len(answers))
	}
	return answers, err
}

// takeLane takes the lane for a question if it is free, or lets it wait.
func (g *Gatherer[Q, A]) takeLane(a *asked[Q, A]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.used {
		g.used = true
		return true
	}
	g.waiting = append(g.waiting, a)
	return false
}

// leave lets one go who does not wait any longer, and hands the lane over if it was
// given it meanwhile.
func (g *Gatherer[Q, A]) leave(a *asked[Q, A]) {
	g.mu.Lock()
	if i := slices.Index(g.waiting, a); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
	g.mu.Unlock()
	select {
	case h := <-a.heard:
		if h.turn == leads {
			g.handOver()
		}
	default: // what it will be told, nobody hears
	}
}

// handOver gives the lane to the first who waits.
func (g *Gatherer[Q, A]) handOver() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.used = false
		return
	}
	g.waiting[0].heard <- told[A]{turn: leads}
	g.waiting = slices.Delete(g.waiting, 0, 1)
}

// gather is a question with those that wait.
func (g *Gatherer[Q, A]) gather(first *asked[Q, A]) []*asked[Q, A] {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(len(g.waiting), maxQuestions-1)
	all := append([]*asked[Q, A]{first}, g.waiting[:n]...)
	g.waiting = slices.Delete(g.waiting, 0, n)
	return all
}

var errNotRead = errors.New("the read did not return")

// lead uses the lane: it tells first, and all whose questions it takes along, what the
// answers are, and hands the lane over. A read that stands still holds it for laneTime,
// and no longer.
func (g *Gatherer[Q, A]) lead(ctx context.Context, first *asked[Q, A]) {
	handOver := sync.OnceFunc(g.handOver)
	defer handOver()
	defer time.AfterFunc(g.laneTime, handOver).Stop()
	select {
	case g.places <- struct{}{}:
		defer func() { <-g.places }()
	case <-ctx.Done():
		first.heard <- told[A]{}
		return
	}
	runtime.Gosched() // who is about to ask does so first, where processors are busy
	all := g.gather(first)
	answered := 0
	defer func() { // who is left after a panic
		for _, a := range all[answered:] {
			a.heard <- told[A]{err: errNotRead}
		}
	}()
	questions := make([]Q, len(all))
	for i, a := range all {
		questions[i] = a.question
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readDeadline)
	defer cancel()
	answers, err := g.answers(ctx, questions)
	away := errors.Is(err, ErrNoConnection) || ctx.Err() != nil
	for i, a := range all {
		switch answered++; {
		case err == nil:
			a.heard <- told[A]{answer: answers[i]}
		case !away && len(all) > 1:
			a.heard <- told[A]{turn: goesAlone} // whose fault it was, nobody knows
		default:
			a.heard <- told[A]{err: err}
		}
	}
}
