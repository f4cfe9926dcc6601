package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// Gatherer lets reads that are asked for at the same moment share a round trip, as
// the commits of a DB do. What is read has to be one round trip for many questions.
//
// Who asks alone reads at once. Who asks while others read, or in busy times, may wait for
// company (see lanes), and the first of those who wait asks the questions of the others with its own.
// There is no goroutine of its own, and nothing to close.
//
// A question is sent after it was asked, never before: what was committed until then
// counts. Nothing is remembered from one read to the next.
type Gatherer[Q, A any] struct {
	read func(ctx context.Context, questions []Q) (answers []A, err error)

	places   chan struct{} // one for each read
	laneTime time.Duration
	lanes    *lanes[*asked[Q, A]] // one
}

const (
	maxQuestions    = 64                   // of one read
	enoughQuestions = 16                   // for a read not to stay behind another one
	readStay        = 5 * time.Millisecond // in busy times, at most
)

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
	l := &lanes[*asked[Q, A]]{
		enough: enoughQuestions, longest: readStay,
		fit:  func(waiting []*asked[Q, A]) int { return min(len(waiting), maxQuestions) },
		lead: func(all []*asked[Q, A]) { all[0].heard <- told[Q, A]{turn: leads, all: all} },
	}
	return &Gatherer[Q, A]{read: read, places: make(chan struct{}, most), laneTime: laneTime, lanes: l.open(1)}
}

// asked is a question of one caller.
type asked[Q, A any] struct {
	question Q
	heard    chan told[Q, A] // has room for one
}

// told is what one who waited is told, once.
type told[Q, A any] struct {
	turn   turn
	answer A
	err    error
	all    []*asked[Q, A] // of one that leads, itself the first
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
	a := &asked[Q, A]{question: question, heard: make(chan told[Q, A], 1)}
	runtime.Gosched() // who is about to ask comes first, where processors are busy
	g.lanes.join(a)
	var h told[Q, A]
	select {
	case h = <-a.heard:
	case <-ctx.Done():
		g.lanes.withdraw(a)
		select {
		case h = <-a.heard: // perhaps that it leads: others would wait for ever
		default: // what it will be told, nobody hears
			return answer, ctx.Err()
		}
	}
	if h.turn == leads {
		g.lead(ctx, h.all)
		h = <-a.heard
	}
	if h.turn == asksAgain {
		return g.ask(ctx, question)
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

var errNotRead = errors.New("the read did not return")

// lead uses the lane: it tells all, the first and those whose questions it takes along,
// what the answers are, and hands the lane over. A read that stands still holds it for
// laneTime, and no longer.
func (g *Gatherer[Q, A]) lead(ctx context.Context, all []*asked[Q, A]) {
	defer g.lanes.use(len(all), g.laneTime)()
	answered := 0
	tell := func(t told[Q, A]) {
		answered++
		all[answered-1].heard <- t
	}
	defer func() { // who is left after a panic
		for answered < len(all) {
			tell(told[Q, A]{err: errNotRead})
		}
	}()
	select {
	case g.places <- struct{}{}:
		defer func() { <-g.places }()
	case <-ctx.Done():
		tell(told[Q, A]{err: ctx.Err()})
		for answered < len(all) { // the others may have the time
			tell(told[Q, A]{turn: asksAgain})
		}
		return
	}
	questions := make([]Q, len(all))
	for i, a := range all {
		questions[i] = a.question
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readDeadline)
	defer cancel()
	answers, err := g.answers(ctx, questions)
	away := errors.Is(err, ErrNoConnection) || ctx.Err() != nil
	for i := range all {
		switch {
		case err == nil:
			tell(told[Q, A]{answer: answers[i]})
		case !away && len(all) > 1:
			tell(told[Q, A]{turn: goesAlone}) // whose fault it was, nobody knows
		default:
			tell(told[Q, A]{err: err})
		}
	}
}
