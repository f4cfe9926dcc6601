package postgres_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
)

// TestReads_callersLeave: nobody is kept by a read that was asked for him, and nobody's
// leaving has the others ask each for himself.
func TestReads_callersLeave(t *testing.T) {
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
}
