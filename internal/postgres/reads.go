package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/payonce/payonce/groupcommit"
)

// Reads lets questions that are asked at the same moment share a round trip, as commits
// do. A question is sent after it was asked, never before: what was committed until then
// counts. Nothing is remembered from one read to the next.
type Reads[Q, A any] struct {
	batcher *groupcommit.Batcher[Q, A]
	read    func(ctx context.Context, questions []Q) (answers []A, err error)
}

const (
	maxQuestions = 64 // of one read

	// readDeadline bounds a read that nobody may cancel, since others wait for it too.
	readDeadline = 15 * time.Second
)

// NewReads makes Reads of a function that answers 1 to 64 questions, in their order. Its
// context has the values of one of the callers, and a deadline of its own. Should reads
// stand still, so many are under way at a time, and no more; 20 where that is zero.
func NewReads[Q, A any](most int, read func(ctx context.Context, questions []Q) (answers []A, err error)) *Reads[Q, A] {
	if most <= 0 {
		most = defaultConns
	}
	r := &Reads[Q, A]{read: read}
	r.batcher = &groupcommit.Batcher[Q, A]{
		Most: most, MayLeave: true, Call: r.call,
		Fit: func(queue []Q) int { return min(len(queue), maxQuestions) },
	}
	return r
}

// Ask returns the answer to a question, or the error of the read: ErrNoConnection as
// reads have it, also for a context that has ended by its deadline. For one that was
// canceled, also while the read was under way, it is that. What fails for another reason
// is asked again for each question by itself.
func (r *Reads[Q, A]) Ask(ctx context.Context, question Q) (answer A, err error) {
	if ctx.Err() == nil {
		answer, err = r.batcher.Do(ctx, question)
	}
	if ended := ctx.Err(); ended != nil { // a caller that is gone goes no further
		return *new(A), named(nil, ended)
	}
	return answer, err
}

func (r *Reads[Q, A]) call(ctx context.Context, questions []Q) []groupcommit.Outcome[A] {
	ctx, cancel := context.WithTimeout(ctx, readDeadline)
	defer cancel()
	answers, err := r.read(ctx, questions)
	if err == nil && len(answers) != len(questions) {
		err = fmt.Errorf("%d questions have %d answers", len(questions), len(answers))
	}
	away := errors.Is(err, ErrNoConnection) || ctx.Err() != nil
	outcomes := make([]groupcommit.Outcome[A], len(questions))
	for i := range outcomes {
		if err == nil {
			outcomes[i].Value = answers[i]
		} else {
			outcomes[i].Err, outcomes[i].Alone = err, !away
		}
	}
	return outcomes
}
