package inbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// What a page has claimed belongs to no handler until its answer comes, and is not taken back meanwhile.
func TestClaim_whoseCommitIsSlow(t *testing.T) {
	t.Parallel()
	db, handled := stocked(t), &diary{}
	p := processor(t, hooked{db, func(ctx context.Context, b *pgx.Batch) error {
		err := db.Commit(ctx, b)
		if has(b, "storeRows") { // the page
			write(t, db, `update inbox set claimed_at = claimed_at - interval '1 minute' where message_id = 'm1'`)
			<-time.After(2500 * time.Millisecond) // of two repairs
		}
		return err
	}}, noting(handled), short)
	start(t, p)
	put(t, db, "m0", "")
	done(t, db)
	_, err := p.Receive(t.Context(), note("m1", ""))
	testdb.Must(t, err)
	done(t, db)
	testrun.Same(t, "handled", "m0 m1", handled.String())
	testrun.Same(t, "deaths", int64(0), testdb.One[int64](t, db, `select sum(deaths) from inbox`))
}

// A message whose commit took longer than the overlap of claims is found within a second. A holder without
// a message is not registered.
func TestClaim_findsWhatWasCommittedLate(t *testing.T) {
	t.Parallel()
	db := stocked(t)
	start(t, processor(t, db, answer(nil), short))
	put(t, db, "m0", "")
	done(t, db)
	testrun.Row(t, db, `select count(*) = 0 from inbox_holders`) // claims left nothing due meanwhile
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, first, due_at)
		select receiver, 'm1', 'm1', type, payload, metadata, payload_hash, true, clock_timestamp() - interval '4 s' from inbox`)
	done(t, db)
}

// A beat that takes most of the lease loses no message, since the next one begins at once.
func TestBeat_thatIsSlow(t *testing.T) {
	t.Parallel()
	db := stocked(t, "m1@k")
	h, pauses := newHung(db), make(chan time.Duration, 100)
	var ended time.Time
	slow := hooked{db, func(ctx context.Context, b *pgx.Batch) error {
		if has(b, "beat") {
			pauses <- time.Since(ended)
			<-time.After(700 * time.Millisecond)
			defer func() { ended = time.Now() }()
		}
		return db.Commit(ctx, b)
	}}
	start(t, processor(t, slow, h.handle, func(o *inbox.Options) { o.Policy.Lease = 1800 * time.Millisecond }))
	defer close(h.finish)
	testrun.True(t, "between two slow beats is less than a third of the lease", func() bool {
		return testrun.Receive(t, "a beat", pauses) < 300*time.Millisecond
	})
}
