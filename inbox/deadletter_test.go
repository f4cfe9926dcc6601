package inbox_test

import (
	"testing"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/inbox/deadletter"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// Decisions about dead letters are tested here where they need a processor.

func TestRetry_beginsAnewInTheOrderOfTheKey(t *testing.T) {
	t.Parallel()
	db, handled := stocked(t, "m1@k", "m2@k", "m3@k"), &diary{}
	write(t, db, `update inbox set status = 'dead', attempts = 3, deaths = 2, waits = 4, fence = 5, waiting_since = clock_timestamp(),
		due_at = clock_timestamp() + interval '1 hour' where message_id = 'm1'`)
	m1 := testdb.One[int64](t, db, `select min(id) from inbox`)
	testdb.Must(t, deadletter.Retry(t.Context(), db, m1, "ada"))
	testrun.Row(t, db, `select status = 'pending' and attempts = 0 and deaths = 0 and waits = 0 and waiting_since is null
		and due_at <= clock_timestamp() and decided_by = 'ada' and decided_at <= clock_timestamp() from inbox where id = $1`, m1)
	start(t, processor(t, db, noting(handled)))
	done(t, db)
	testrun.Same(t, "order", "m1 m2 m3", handled.String())
	if got, err := deadletter.Show(t.Context(), db, m1); err != nil || got.DecidedBy != "ada" || got.DecidedAt == nil {
		t.Errorf("when it is done, who retried it is %+v, %v", got, err)
	}
}

// What a holder of long ago still commits is refused. That the key goes on is in TestModel.
func TestDiscard_endsForEver(t *testing.T) {
	t.Parallel()
	db := stocked(t, "m1@k")
	h := newHung(db)
	start(t, processor(t, db, h.handle))
	testrun.Receive(t, "the holder", h.begun)
	write(t, db, `update inbox set status = 'dead', last_error = 'odd'`) // its fence is still the newest
	testdb.Must(t, deadletter.Discard(t.Context(), db, testdb.One[int64](t, db, `select id from inbox`), "ada"))
	close(h.finish)
	if err := testrun.Receive(t, "the commit", h.ended); !inbox.IsLost(err) {
		t.Errorf("the holder's commit ended with %v", err)
	}
	testrun.Row(t, db, `select status = 'discarded' and not exists (select from merchants) from inbox`)
	entries, err := deadletter.List(t.Context(), db, deadletter.Filter{Status: deadletter.StatusDiscarded}, 0, 10)
	if err != nil || len(entries) != 1 || entries[0].DecidedBy != "ada" || entries[0].FinishedAt == nil || entries[0].LastError != "odd" {
		t.Errorf("discarded messages: %+v, %v", entries, err)
	}
}
