package postgres_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
)

// TestWhoLeavesAGatherer: nobody is kept by a read that was asked for him, and nobody's
// leaving has the others ask each for himself.
func TestWhoLeavesAGatherer(t *testing.T) {
	t.Parallel()

	t.Run("while another one asks for him, he is not kept", func(t *testing.T) {
		t.Parallel()
		r := newReader(0)
		first := r.ask(t.Context(), 1)
		await.True(t, "the first one reads", func() bool { return len(r.readsSoFar()) == 1 })
		second := r.ask(t.Context(), 2)
		await.True(t, "the second one waits", func() bool { return r.Waiting() == 1 })
		ctx, cancel := context.WithCancel(t.Context())
		third := r.ask(ctx, 3)
		await.True(t, "the third one waits", func() bool { return r.Waiting() == 2 })
		r.letGo <- struct{}{}
		await.True(t, "the second one reads for both", func() bool { return len(r.readsSoFar()) == 2 })
		cancel()
		if a := <-third; !errors.Is(a.err, context.Canceled) || errors.Is(a.err, postgres.ErrNoConnection) {
			t.Errorf("the third one is told %v", a.err)
		}
		close(r.letGo)
		for i, told := range []<-chan answerTo{first, second} {
			if a := <-told; a.text != strconv.Itoa(i+1) || a.err != nil {
				t.Errorf("%d is answered %q, %v", i+1, a.text, a.err)
			}
		}
		r.wantReads(t, []int{1}, []int{2, 3})
	})

	t.Run("while he waits for a place, the others are answered", func(t *testing.T) {
		t.Parallel()
		r := newReader(1)
		r.StandStillFor(0)
		standing := r.ask(t.Context(), 1)
		await.True(t, "the first one reads", func() bool { return len(r.readsSoFar()) == 1 && r.LaneIsFree() })
		release := r.HoldLane()
		r.StandStillFor(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		leader := r.ask(ctx, 2)
		await.True(t, "the leader waits", func() bool { return r.Waiting() == 1 })
		var others []<-chan answerTo
		for i := range 8 {
			others = append(others, r.ask(t.Context(), 3+i))
			await.True(t, "the next one waits", func() bool { return r.Waiting() == 2+i })
		}
		release()
		await.True(t, "the leader waits for a place", func() bool { return r.Waiting() == 0 })
		cancel()
		if a := <-leader; !errors.Is(a.err, context.Canceled) {
			t.Errorf("the leader is told %v", a.err)
		}
		close(r.letGo)
		<-standing
		for i, told := range others {
			if a := <-told; a.text != strconv.Itoa(3+i) || a.err != nil {
				t.Errorf("%d is answered %q, %v", 3+i, a.text, a.err)
			}
		}
		await.True(t, "the lane is free", r.LaneIsFree)
	})
}
