package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
)

// reader answers numbers with their text. Its reads stand still until they are let go.
type reader struct {
	*postgres.Reads[int, string]

	letGo   chan struct{} // one for each read
	refused map[int]error // what the read of a question ends with

	mu       sync.Mutex
	reads    [][]int
	standing int
	peak     int // of those that stood still at a time
}

func newReader(most int) *reader {
	r := &reader{letGo: make(chan struct{}, 100), refused: map[int]error{}}
	r.Reads = postgres.NewReads(most, r.read)
	r.StandStillFor(time.Hour)
	return r
}

func (r *reader) read(ctx context.Context, questions []int) ([]string, error) {
	r.mu.Lock()
	r.reads = append(r.reads, slices.Clone(questions))
	r.standing++
	r.peak = max(r.peak, r.standing)
	r.mu.Unlock()
	<-r.letGo
	r.mu.Lock()
	r.standing--
	r.mu.Unlock()
	answers := make([]string, len(questions))
	for i, q := range questions {
		if err := r.refused[q]; err != nil {
			return nil, err
		}
		answers[i] = strconv.Itoa(q)
	}
	return answers, ctx.Err()
}

func (r *reader) readsSoFar() [][]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reads)
}

type answerTo struct {
	text string
	err  error
}

// ask asks in the background.
func (r *reader) ask(ctx context.Context, question int) <-chan answerTo {
	told := make(chan answerTo, 1)
	go func() {
		text, err := r.Ask(ctx, question)
		told <- answerTo{text, err}
	}()
	return told
}

// askInOrder asks the first, whose read stands still, and then those who wait for it.
func (r *reader) askInOrder(first context.Context, t *testing.T, questions ...int) []<-chan answerTo {
	t.Helper()
	told := []<-chan answerTo{r.ask(first, questions[0])}
	await.True(t, "the first one reads", func() bool { return len(r.readsSoFar()) == 1 })
	for i, q := range questions[1:] {
		told = append(told, r.ask(t.Context(), q))
		await.True(t, "the next one waits", func() bool { return r.Waiting() == i+1 })
	}
	return told
}

func (r *reader) wantReads(t *testing.T, want ...[]int) {
	t.Helper()
	await.True(t, "the slot is free", r.SlotIsFree)
	if got := fmt.Sprint(r.readsSoFar()); got != fmt.Sprint(want) {
		t.Errorf("the reads are %s, want %v", got, want)
	}
}

func TestReads(t *testing.T) {
	t.Parallel()

	t.Run("who asks alone is answered alone", func(t *testing.T) {
		t.Parallel()
		r := newReader(0)
		for q := range 3 {
			r.letGo <- struct{}{}
			if text, err := r.Ask(t.Context(), q); text != strconv.Itoa(q) || err != nil {
				t.Errorf("%d is answered %q, %v", q, text, err)
			}
		}
		r.wantReads(t, []int{0}, []int{1}, []int{2})
	})

	t.Run("who asks while a read is under way shares the next one", func(t *testing.T) {
		t.Parallel()
		r := newReader(0)
		told := r.askInOrder(t.Context(), t, 1, 2, 3, 4)
		close(r.letGo)
		for i, told := range told {
			if a := <-told; a.text != strconv.Itoa(i+1) || a.err != nil {
				t.Errorf("%d is answered %q, %v", i+1, a.text, a.err)
			}
		}
		r.wantReads(t, []int{1}, []int{2, 3, 4})
	})

	t.Run("a refusal is of one question", func(t *testing.T) {
		t.Parallel()
		r := newReader(0)
		r.refused[3] = &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "22P02"}
		told := r.askInOrder(t.Context(), t, 1, 2, 3, 4)
		close(r.letGo)
		for i, told := range told {
			if a := <-told; code(a.err) != map[int]string{2: "22P02"}[i] {
				t.Errorf("%d is answered %q, %v", i+1, a.text, a.err)
			}
		}
		if n := len(r.readsSoFar()); n != 5 {
			t.Errorf("%d reads, want one, one together and one for each of three", n)
		}
	})

	t.Run("so is an answer that cannot be read", func(t *testing.T) {
		t.Parallel()
		r := newReader(0)
		planted := errors.New("planted")
		r.refused[3] = planted
		told := r.askInOrder(t.Context(), t, 1, 2, 3, 4)
		close(r.letGo)
		for i, told := range told {
			if a := <-told; errors.Is(a.err, planted) != (i == 2) || i != 2 && a.text != strconv.Itoa(i+1) {
				t.Errorf("%d is answered %q, %v", i+1, a.text, a.err)
			}
		}
	})

	t.Run("those who ask again by themselves are no more than may stand still", func(t *testing.T) {
		t.Parallel()
		const most, questions = 2, 9
		r := newReader(most)
		r.refused[2] = &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "55P03"}
		told := r.askInOrder(t.Context(), t, 1, 2, 3, 4, 5, 6, 7, 8, questions)
		r.StandStillFor(time.Millisecond)
		const reads = 1 + 1 + questions - 1 // one, the others together, and each of them by itself
		for n := range reads {
			begun := n + 1
			if n > 1 {
				begun = min(reads, n+most)
			}
			await.True(t, "the next ones read", func() bool { return len(r.readsSoFar()) == begun })
			r.letGo <- struct{}{}
		}
		for i, told := range told {
			if a := <-told; (a.err == nil) != (i != 1) {
				t.Errorf("%d is answered %q, %v", i+1, a.text, a.err)
			}
		}
		if r.peak != most {
			t.Errorf("%d reads stood still at a time, want %d", r.peak, most)
		}
	})

	t.Run("when the database is away all are told, and nobody asks again", func(t *testing.T) {
		t.Parallel()
		r := newReader(0)
		r.refused[3] = postgres.ErrNoConnection
		told := r.askInOrder(t.Context(), t, 1, 2, 3)
		close(r.letGo)
		for i, told := range told {
			if a := <-told; errors.Is(a.err, postgres.ErrNoConnection) != (i > 0) {
				t.Errorf("%d is answered %q, %v", i+1, a.text, a.err)
			}
		}
		r.wantReads(t, []int{1}, []int{2, 3})
	})

	t.Run("who leaves while he reads takes no answer from the others", func(t *testing.T) {
		t.Parallel()
		r := newReader(0)
		ctx, cancel := context.WithCancel(t.Context())
		told := r.askInOrder(ctx, t, 1, 2)
		cancel()
		close(r.letGo)
		if a := <-told[0]; a.text != "" || !errors.Is(a.err, context.Canceled) {
			t.Errorf("he is answered %q, %v", a.text, a.err)
		}
		if a := <-told[1]; a.text != "2" || a.err != nil {
			t.Errorf("the other one is answered %q, %v", a.text, a.err)
		}
		if a := <-r.ask(ctx, 3); a.text != "" || !errors.Is(a.err, context.Canceled) {
			t.Errorf("who has left before is answered %q, %v", a.text, a.err)
		}
		r.wantReads(t, []int{1}, []int{2})
	})

	t.Run("who leaves while he waits is not asked for", func(t *testing.T) {
		t.Parallel()
		r := newReader(0)
		first := r.ask(t.Context(), 1)
		await.True(t, "the first one reads", func() bool { return len(r.readsSoFar()) == 1 })
		ctx, cancel := context.WithCancel(t.Context())
		second := r.ask(ctx, 2)
		await.True(t, "the second one waits", func() bool { return r.Waiting() == 1 })
		cancel()
		if a := <-second; !errors.Is(a.err, context.Canceled) || errors.Is(a.err, postgres.ErrNoConnection) {
			t.Errorf("the second one is told %v", a.err)
		}
		close(r.letGo)
		<-first
		r.wantReads(t, []int{1})
	})

	t.Run("a slot that is given to one who leaves is handed on", func(t *testing.T) {
		t.Parallel()
		r := newReader(0)
		close(r.letGo)
		var all sync.WaitGroup
		for i := range 200 {
			ctx, cancel := context.WithCancel(t.Context())
			told := r.ask(ctx, i)
			all.Go(func() { // at any moment
				cancel()
				if a := <-told; a.err == nil && a.text != strconv.Itoa(i) {
					t.Errorf("%d is answered %q", i, a.text)
				}
			})
		}
		all.Wait()
		await.True(t, "the slot is free", r.SlotIsFree)
		if text, err := r.Ask(t.Context(), 1); text != "1" || err != nil {
			t.Errorf("the next one is answered %q, %v", text, err)
		}
	})

	t.Run("a read that stands still holds nobody up, and few may stand", func(t *testing.T) {
		t.Parallel()
		const most = 2
		r := newReader(most)
		r.StandStillFor(time.Millisecond)
		told := []<-chan answerTo{r.ask(t.Context(), 1)}
		await.True(t, "the first one reads", func() bool { return len(r.readsSoFar()) == 1 })
		told = append(told, r.ask(t.Context(), 2))
		await.True(t, "the second one reads", func() bool { return len(r.readsSoFar()) == most })
		third := r.ask(t.Context(), 3)
		ctx, cancel := context.WithCancel(t.Context())
		fourth := r.ask(ctx, 4)
		cancel()
		if a := <-fourth; !errors.Is(a.err, context.Canceled) {
			t.Errorf("the fourth one is told %v", a.err)
		}
		if n := len(r.readsSoFar()); n != most {
			t.Errorf("%d reads stand still, want %d", n, most)
		}
		close(r.letGo)
		for i, told := range append(told, third) {
			if a := <-told; a.text != strconv.Itoa(i+1) || a.err != nil {
				t.Errorf("%d is answered %q, %v", i+1, a.text, a.err)
			}
		}
	})

	t.Run("one read has sixty-four questions at most", func(t *testing.T) {
		t.Parallel()
		r := newReader(0)
		told := r.askInOrder(t.Context(), t, 0)
		for i := range 99 {
			told = append(told, r.ask(t.Context(), 1+i))
		}
		await.True(t, "the others wait", func() bool { return r.Waiting() == 99 })
		close(r.letGo)
		for _, told := range told {
			<-told
		}
		var sizes []int
		for _, read := range r.readsSoFar() {
			sizes = append(sizes, len(read))
		}
		if !slices.Equal(sizes, []int{1, 64, 35}) {
			t.Errorf("the reads have %v questions", sizes)
		}
	})

	t.Run("a read that panics leaves nobody waiting", func(t *testing.T) {
		t.Parallel()
		entered, letGo := make(chan struct{}), make(chan struct{})
		reads := 0
		g := postgres.NewReads(1, func(_ context.Context, questions []int) ([]int, error) {
			if reads++; reads == 1 {
				close(entered)
				<-letGo
				return questions, nil
			}
			panic("planted")
		})
		g.StandStillFor(time.Hour)
		ask := func(q int) <-chan error {
			told := make(chan error, 1)
			go func() {
				err := errors.New("it panics")
				defer func() { _ = recover(); told <- err }()
				_, err = g.Ask(t.Context(), q)
			}()
			return told
		}
		all := []<-chan error{ask(1)}
		<-entered
		for i := range 2 {
			all = append(all, ask(2+i))
			await.True(t, "the next one waits", func() bool { return g.Waiting() == i+1 })
		}
		close(letGo)
		for i, told := range all {
			if err := <-told; (err == nil) != (i == 0) {
				t.Errorf("%d is told %v", i, err)
			}
		}
		await.True(t, "the slot is free", g.SlotIsFree)
	})
}
