package idempotency_test

import (
	"errors"
	"testing"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
)

func TestOnce_withoutItsStandbyReplaysNothingThatAFailoverLoses(t *testing.T) {
	t.Parallel()
	p := newReplicatedPair(t)
	for name, end := range map[string]string{
		"an operator cancels":    `select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`,
		"an operator terminates": `select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`,
	} {
		t.Run(name, func(t *testing.T) {
			w, o := &work{}, order{ID: name}
			p.detach(t)
			ended := make(chan result[receipt], 1)
			go func() { ended <- once(t.Context(), p.db.Pool(), o, w.do) }()
			await.Row(t, p.admin, `select exists (select from pg_stat_activity where wait_event = 'SyncRep')`)
			execute(t, p.admin, end)
			first := await.Receive(t, "the call", ended)
			t.Logf("%+v", first)
			if got := once(t.Context(), p.db.Pool(), o, w.do); !errors.Is(got.Err, idempotency.ErrUnknown) {
				t.Errorf("%+v", got)
			}
			p.attach(t)
			if got := once(t.Context(), p.db.Pool(), o, w.do); got.Err != nil || !got.Replayed || w.calls.Load() != 1 {
				t.Errorf("then %+v", got)
			}
		})
	}
}
