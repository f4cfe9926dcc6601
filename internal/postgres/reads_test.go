package postgres_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testrun"
)

// reader reads the text of numbers. Its reads wait until letGo is closed.
type reader struct {
	*postgres.Reads[int, string]

	letGo    chan struct{}
	fails    error // the error of a read with lookup 3
	mu       sync.Mutex
	reads    [][]int
	inFlight int
	most     int // of inFlight
}

func newReader(fails error) *reader {
	r := &reader{letGo: make(chan struct{}), fails: fails}
	r.Reads = postgres.NewReads(1, func(_ context.Context, lookups []int) ([]string, error) {
		r.mu.Lock()
		r.reads = append(r.reads, slices.Clone(lookups))
		r.inFlight++
		r.most = max(r.most, r.inFlight)
		r.mu.Unlock()
		<-r.letGo
		<-time.After(time.Millisecond)
		r.mu.Lock()
		r.inFlight--
		r.mu.Unlock()
		if r.fails != nil && slices.Contains(lookups, 3) {
			return nil, r.fails
		}
		answers := make([]string, len(lookups))
		for i, q := range lookups {
			answers[i] = strconv.Itoa(q)
		}
		return answers, nil
	})
	return r
}

type answer struct {
	Text string
	Err  error
}

// ask asks in the background, each lookup when the one before is queued.
func (r *reader) ask(ctx context.Context, lookups ...int) []chan answer {
	answers := make([]chan answer, len(lookups))
	for i, q := range lookups {
		answers[i] = make(chan answer, 1)
		go func() {
			text, err := r.Lookup(ctx, q)
			answers[i] <- answer{text, err}
		}()
		synctest.Wait()
	}
	return answers
}

// How reads are batched is tested in groupcommit.
func TestReads_failedReadsAreRepeatedForEachLookup(t *testing.T) {
	t.Parallel()
	refused, planted := &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "22P02"}, errors.New("planted")
	for _, test := range []struct {
		name   string
		fails  error
		failed []int   // lookups that have the error
		more   [][]int // reads after the first two
	}{
		{"none", nil, nil, nil},
		{"a refusal", refused, []int{3}, [][]int{{2}, {3}, {4}}},
		{"an answer that cannot be scanned", planted, []int{3}, [][]int{{2}, {3}, {4}}},
		{"no connection", io.ErrUnexpectedEOF, []int{2, 3, 4}, nil},
		{"a server that shuts down", &pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01"}, []int{2, 3, 4}, nil},
		{"a standby that has not confirmed", postgres.ErrNotReplicated, []int{2, 3, 4}, nil},
		{"a lock", &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "55P03"}, []int{2, 3, 4}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newReader(test.fails)
				answers := r.ask(t.Context(), 1, 2, 3, 4)
				close(r.letGo)
				for i, c := range answers {
					a, q := <-c, i+1
					if failed := slices.Contains(test.failed, q); failed != errors.Is(a.Err, test.fails) &&
						test.fails != nil || !failed && a != (answer{Text: strconv.Itoa(q)}) {
						t.Errorf("%d has the answer %q, %v", q, a.Text, a.Err)
					}
				}
				slices.SortFunc(r.reads, slices.Compare)
				want := append([][]int{{1}, {2, 3, 4}}, test.more...)
				slices.SortFunc(want, slices.Compare)
				testrun.Same(t, "reads", want, r.reads)
				if r.most != 1 {
					t.Errorf("%d reads were in flight, where one has a slot", r.most)
				}
			})
		})
	}
}

// A caller that leaves gets the error of its context and no answer, and takes none from the
// others.
func TestReads_callersCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newReader(nil)
		reading, leave := context.WithCancel(t.Context())
		first := r.ask(reading, 1)
		queued, leaveQueue := context.WithCancel(t.Context())
		second, third := r.ask(queued, 2), r.ask(t.Context(), 3)
		leave()
		leaveQueue()
		synctest.Wait()
		close(r.letGo)
		for _, c := range append(append(first, second...), r.ask(reading, 4)...) {
			if a := <-c; a.Text != "" || !errors.Is(a.Err, context.Canceled) {
				t.Errorf("the answer is %q, %v", a.Text, a.Err)
			}
		}
		if a := <-third[0]; a != (answer{Text: "3"}) {
			t.Errorf("the caller that stayed has the answer %q, %v", a.Text, a.Err)
		}
		testrun.Same(t, "reads", [][]int{{1}, {3}}, r.reads)
	})
}
