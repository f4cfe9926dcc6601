package groupcommit_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/testrun"
)

// calls is a batcher whose calls stand still until they are let go.
type calls struct {
	*groupcommit.Batcher[int, string]

	letGo chan struct{}
	mu    sync.Mutex
	all   [][]int
}

func standing(b *groupcommit.Batcher[int, string]) *calls {
	c := &calls{Batcher: b, letGo: make(chan struct{})}
	answer := b.Call
	c.Call = func(ctx context.Context, items []int) []groupcommit.Result[string] {
		c.mu.Lock()
		c.all = append(c.all, slices.Clone(items))
		c.mu.Unlock()
		<-c.letGo
		if answer != nil {
			return answer(ctx, items)
		}
		outcomes := make([]groupcommit.Result[string], len(items))
		for i, item := range items {
			outcomes[i].Value = strconv.Itoa(item)
		}
		return outcomes
	}
	return c
}

func (c *calls) soFar() [][]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

type answer struct {
	value string
	err   error
}

// do carries out items in the background, one after another queued.
func (c *calls) do(ctx context.Context, items ...int) []chan answer {
	told := make([]chan answer, len(items))
	for i, item := range items {
		told[i] = make(chan answer, 1)
		go func() {
			value, err := c.Do(ctx, item)
			told[i] <- answer{value, err}
		}()
		synctest.Wait()
	}
	return told
}

func (c *calls) want(t *testing.T, want ...[]int) {
	t.Helper()
	synctest.Wait()
	testrun.Same(t, "calls", want, c.soFar())
}

func wantAnswers(t *testing.T, told []chan answer, want ...string) {
	t.Helper()
	for i, w := range want {
		if a := <-told[i]; a.value != w || a.err != nil {
			t.Errorf("item %d is answered %q, %v, want %q", i, a.value, a.err, w)
		}
	}
}

// A call holds up the next one no longer than NextAfter, and there are as many as Slots has places.
func TestBatcher_startsTheNextBatchAfterItsBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := standing(&groupcommit.Batcher[int, string]{Slots: make(chan struct{}, 2)})
		told := c.do(t.Context(), 1, 2, 3)
		c.want(t, []int{1})
		<-time.After(50 * time.Millisecond)
		c.want(t, []int{1}, []int{2, 3})
		told = append(told, c.do(t.Context(), 4)...)
		<-time.After(time.Hour)
		c.want(t, []int{1}, []int{2, 3})
		close(c.letGo)
		wantAnswers(t, told, "1", "2", "3", "4")
		wantAnswers(t, c.do(t.Context(), 5), "5")
	})
}

func TestBatcher_callersCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := standing(&groupcommit.Batcher[int, string]{Slots: make(chan struct{}, 1)})
		first := c.do(t.Context(), 1)
		ctx, cancel := context.WithCancel(t.Context())
		second, leaving := c.do(t.Context(), 2), c.do(ctx, 3)
		queuedContext, leave := context.WithCancel(t.Context())
		queued := c.do(queuedContext, 4)
		leave()
		if a := <-queued[0]; !errors.Is(a.err, context.Canceled) {
			t.Errorf("a caller that left the queue gets %v", a.err)
		}
		c.letGo <- struct{}{}
		c.want(t, []int{1}, []int{2, 3})
		cancel()
		if a := <-leaving[0]; !errors.Is(a.err, context.Canceled) {
			t.Errorf("a caller whose item is carried out gets %q, %v", a.value, a.err)
		}
		close(c.letGo)
		wantAnswers(t, append(first, second...), "1", "2")
	})
}
