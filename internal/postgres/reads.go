package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/payonce/payonce/groupcommit"
)

// Reads batches questions: those that are asked while a read is in flight share the next
// round trip. A question is sent after it was asked, so its answer has everything that was
// committed until then. Nothing is cached.
type Reads[Q, A any] struct {
	batcher *groupcommit.Batcher[Q, A]
	read    func(ctx context.Context, questions []Q) (answers []A, err error)
}

const (
	maxQuestions = 64 // of one read

	// readTimeout bounds a read, which no caller may cancel, since others wait for it too.
	readTimeout = 15 * time.Second
)

// NewReads batches the calls of a function that answers 1 to 64 questions, in their order.
// Its context has the values of one of the callers, and a deadline of its own. At most so
// many reads are in flight at a time; 20 where most is zero.
func NewReads[Q, A any](most int, read func(ctx context.Context, questions []Q) (answers []A, err error)) *Reads[Q, A] {
	r := &Reads[Q, A]{read: read}
	r.batcher = &groupcommit.Batcher[Q, A]{
		MaxInFlight: cmp.Or(most, defaultConns), Cancelable: true, Call: r.call,
		Fit: func(queue []Q) int { return min(len(queue), maxQuestions) },
	}
	return r
}

// Ask returns the answer to a question, or the error of the read. If ctx ends, also while
// the read is in flight, Ask returns its error, which is ErrNoConnection too if the deadline
// has passed. When a read of several questions fails for another reason than
// ErrNoConnection, each is asked again individually.
func (r *Reads[Q, A]) Ask(ctx context.Context, question Q) (answer A, err error) {
	if ctx.Err() == nil {
		answer, err = r.batcher.Do(ctx, question)
	}
	if ended := ctx.Err(); ended != nil {
		return *new(A), connectionError(nil, ended)
	}
	return answer, err
}

func (r *Reads[Q, A]) call(ctx context.Context, questions []Q) []groupcommit.Result[A] {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	answers, err := r.read(ctx, questions)
	if err == nil && len(answers) != len(questions) {
		err = fmt.Errorf("%d questions have %d answers", len(questions), len(answers))
	}
	outcomes := make([]groupcommit.Result[A], len(questions))
	for i := range outcomes {
		if err == nil {
			outcomes[i].Value = answers[i]
			continue
		}
		outcomes[i].Err = err
		outcomes[i].Individually = ctx.Err() == nil && !errors.Is(err, ErrNoConnection)
	}
	return outcomes
}
