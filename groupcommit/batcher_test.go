package groupcommit_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/testrun"
)

// standing is a batcher whose calls wait until they are let go, and return each item as its result.
type standing struct {
	groupcommit.Batcher[int, int]

	letGo chan struct{}
	mu    sync.Mutex
	calls [][]int
}

func standingCalls(slots int) *standing {
	s := &standing{letGo: make(chan struct{})}
	s.Slots = make(chan struct{}, slots)
	s.Call = func(_ context.Context, items []int) (results []groupcommit.Result[int]) {
		s.mu.Lock()
		s.calls = append(s.calls, slices.Clone(items))
		s.mu.Unlock()
		<-s.letGo
		for _, item := range items {
			results = append(results, groupcommit.Result[int]{Value: item})
		}
		return results
	}
	return s
}

// do carries out an item beside the test.
func (s *standing) do(ctx context.Context, item int) <-chan groupcommit.Result[int] {
	result := make(chan groupcommit.Result[int], 1)
	go func() {
		value, err := s.Do(ctx, item)
		result <- groupcommit.Result[int]{Value: value, Err: err}
	}()
	synctest.Wait()
	return result
}

func (s *standing) want(t *testing.T, calls ...[]int) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	testrun.Same(t, "calls", calls, s.calls)
}

func wantResults(t *testing.T, results ...<-chan groupcommit.Result[int]) {
	t.Helper()
	for i, result := range results {
		testrun.Same(t, "result", groupcommit.Result[int]{Value: i + 1}, <-result)
	}
}

// A call holds up the next one no longer than 50 ms, and there are as many as Slots has places.
func TestBatcher_startsTheNextBatchAfterItsBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := standingCalls(2)
		one, two, three := s.do(t.Context(), 1), s.do(t.Context(), 2), s.do(t.Context(), 3)
		s.want(t, []int{1})
		<-time.After(50 * time.Millisecond)
		s.want(t, []int{1}, []int{2, 3})
		four := s.do(t.Context(), 4)
		<-time.After(time.Hour)
		s.want(t, []int{1}, []int{2, 3})
		close(s.letGo)
		wantResults(t, one, two, three, four, s.do(t.Context(), 5))
	})
}

func TestBatcher_callersCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := standingCalls(1)
		sent, leave := context.WithCancel(t.Context())
		queued, leaveTheQueue := context.WithCancel(t.Context())
		one, two, three, four := s.do(t.Context(), 1), s.do(t.Context(), 2), s.do(sent, 3), s.do(queued, 4)
		leaveTheQueue()
		if r := <-four; !errors.Is(r.Err, context.Canceled) || errors.Is(r.Err, groupcommit.ErrUnknown) {
			t.Errorf("a caller that left the queue gets %v", r.Err)
		}
		s.letGo <- struct{}{}
		s.want(t, []int{1}, []int{2, 3})
		leave()
		if r := <-three; !errors.Is(r.Err, context.Canceled) || !errors.Is(r.Err, groupcommit.ErrUnknown) {
			t.Errorf("a caller whose item is carried out gets %v", r.Err)
		}
		close(s.letGo)
		wantResults(t, one, two)
	})
}

// A call that panics leaves its slot free.
func TestBatcher_aPanicIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	b := groupcommit.Batcher[int, int]{Slots: make(chan struct{}, 1), Call: func(context.Context, []int) []groupcommit.Result[int] { panic("planted") }}
	for range 2 {
		if _, err := b.Do(t.Context(), 1); !errors.Is(err, groupcommit.ErrUnknown) || !strings.Contains(err.Error(), "panic: planted") {
			t.Errorf("the error is %v", err)
		}
	}
}
