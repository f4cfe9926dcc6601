package inbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// late is a database whose answers to pages come late, and whose first repair after it was armed fails.
type late struct {
	*postgres.DB

	page    func() // after the commit of a page
	armed   atomic.Bool
	repairs atomic.Int64 // since the one that failed, with it
}

type ofAPage struct{}

func (l *late) Commit(ctx context.Context, b *pgx.Batch) error {
	repairs := slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool { return strings.Contains(q.SQL, "-- inbox.correctDueTimes\n") })
	if repairs && l.armed.CompareAndSwap(true, false) {
		<-time.After(time.Second) // so the next one comes twenty seconds later
		l.repairs.Store(1)
		return fmt.Errorf("%w: planted", groupcommit.ErrNotCommitted)
	}
	if repairs && l.repairs.Load() > 0 {
		l.repairs.Add(1)
	}
	err := l.DB.Commit(ctx, b)
	if ctx.Value(ofAPage{}) != nil {
		l.page()
	}
	return err
}

func TestClaim_whoseCommitIsSlow(t *testing.T) {
	t.Parallel()
	db, handled := stocked(t), &diary{}
	p := processor(t, &late{DB: db, page: sync.OnceFunc(func() {
		write(t, db, `update inbox set claimed_at = claimed_at - interval '1 minute' where message_id = 'm1'`)
		<-time.After(2500 * time.Millisecond) // of two repairs
	})}, noting(handled), short)
	start(t, p)
	put(t, db, "m0", "")
	done(t, db)
	_, err := p.Receive(context.WithValue(t.Context(), ofAPage{}, true), note("m1", ""))
	testdb.Must(t, err)
	done(t, db)
	testrun.Same(t, "handled", "m0 m1", handled.String())
	testrun.Same(t, "deaths", int64(0), testdb.One[int64](t, db, `select sum(deaths) from inbox`))
}

// A message whose commit took longer than the overlap of claims is found within a second, also after a
// repair that failed, which is repeated less often.
func TestClaim_findsWhatWasCommittedLate(t *testing.T) {
	t.Parallel()
	db, handled := &late{DB: stocked(t)}, &diary{}
	start(t, processor(t, db, noting(handled), short))
	put(t, db.DB, "m0", "")
	done(t, db.DB)
	db.armed.Store(true)
	testrun.True(t, "a repair that failed", func() bool { return db.repairs.Load() > 0 })
	<-time.After(time.Second) // of claims that left nothing due
	write(t, db.DB, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, first, due_at)
		select receiver, 'm1', 'm1', type, payload, metadata, payload_hash, true, clock_timestamp() - interval '4 s' from inbox`)
	done(t, db.DB)
	testrun.Same(t, "repairs", int64(1), db.repairs.Load())
}

// A beat that takes most of the lease loses no message, since the next one begins the earlier.
func TestBeat_thatIsSlow(t *testing.T) {
	t.Parallel()
	db := stocked(t, "m1@k")
	write(t, db, `create table beats (began timestamptz, ended timestamptz)`)
	write(t, db, `
create function beat_slowly() returns trigger language plpgsql as $$
declare
  began timestamptz = clock_timestamp();
begin
  perform pg_sleep(2.6);
  insert into beats values (began, clock_timestamp());
  return new;
end $$`)
	write(t, db, `create trigger beat_slowly before update on inbox_holders for each row execute function beat_slowly()`)
	h := newHung(db)
	start(t, processor(t, db, h.handle))
	testrun.Receive(t, "the first claim", h.begun)
	start(t, processor(t, db, h.handle))
	testrun.Row(t, db, `select count(*) > 2 from beats`)
	pauses := testdb.All[time.Duration](t, db, `
select began - lag(ended) over (order by began) from beats order by began offset 1`)
	if slices.Min(pauses) > 500*time.Millisecond {
		t.Errorf("pauses of %v lie between slow beats, want none of a third of the lease", pauses)
	}
	if slices.Max(pauses) < 300*time.Millisecond { // a busy machine may pause for longer than the lease is then
		testrun.Same(t, "deaths", int64(0), testdb.One[int64](t, db, `select sum(deaths) from inbox`))
	}
	close(h.finish)
	done(t, db)
}
