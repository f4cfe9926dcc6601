package inbox_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// short is a policy of a test that waits for leases.
func short(o *inbox.Options) {
	o.Policy.BackoffBase, o.Policy.BackoffCap, o.Policy.Lease = 1, 1, 300*time.Millisecond
}

// through returns a pool whose connections can all be cut, as if its process died.
func through(t *testing.T) (direct, cut *postgres.DB, cutter *failpoint.Cutter) {
	t.Helper()
	url := testdb.URL(t)
	cutter = failpoint.StartCutter(t, url)
	return testdb.Connect(t, url), testdb.OpenAt(t, cutter.URL(), postgres.Options{}), cutter
}

func TestTakeover(t *testing.T) {
	testrun.Long(t, "it waits for leases")
	t.Parallel()

	t.Run("another process continues, and the silent holder loses its whole commit", func(t *testing.T) {
		t.Parallel()
		db, silent, cutter := through(t)
		put(t, db, "m1", "k")
		zombie, heir := newHung(db), newHung(db) // the zombie's commit comes by another way
		start(t, processor(t, silent, zombie.handle, short, func(o *inbox.Options) { o.Holder = "zombie" }))
		testrun.Receive(t, "the first holder", zombie.begun)
		cutter.Close()
		start(t, processor(t, db, heir.handle, short, func(o *inbox.Options) { o.Holder = "heir" }))
		d := testrun.Receive(t, "the second holder", heir.begun)
		testrun.Same(t, "attempt", 2, d.Attempt)
		close(zombie.finish)
		if err := testrun.Receive(t, "the first commit", zombie.ended); !inbox.IsLost(err) {
			t.Errorf("the first holder's commit ended with %v", err)
		}
		close(heir.finish)
		testdb.Must(t, testrun.Receive(t, "the second commit", heir.ended))
		testrun.Same(t, "effects", []string{"m1-2"}, testdb.All[string](t, db, `select merchant_id from merchants`))
		testrun.Row(t, db, `select status = 'done' and fence = 2 and done_fence = 2 and deaths = 1 and holder like 'heir/%'
			and jsonb_array_length(history) = 1 and history #>> '{0,holder}' like 'zombie/%'
			and history #> '{0}' ?& '{fence,claimed_at,at,lease_ended_at}' from inbox`)
	})

	t.Run("a holder that returns ends the context of handlers whose messages it lost", func(t *testing.T) {
		db := fresh(t, "m1@k")
		h := newHung(db)
		start(t, processor(t, db, h.handle, short))
		testrun.Receive(t, "the first claim", h.begun)
		write(t, db, `update inbox set holder = 'silent'`) // as if it had been silent
		testrun.Receive(t, "another claim, of the same processor", h.begun)
		if err := testrun.Receive(t, "the end of its context", h.lost); !strings.Contains(err.Error(), "taken over") {
			t.Errorf("the context ended by %v", err)
		}
		<-time.After(500 * time.Millisecond) // of five beats
		testrun.Same(t, "contexts of the second claim that ended", 0, len(h.lost))
		close(h.finish)
		done(t, db)
		testrun.Row(t, db, `select count(*) = 1 from merchants`)
	})

	t.Run("a holder that beats keeps its message for longer than a lease", func(t *testing.T) {
		db := fresh(t, "m1@k")
		h := newHung(db)
		lease := func(o *inbox.Options) { o.Policy.Lease = 1500 * time.Millisecond }
		start(t, processor(t, db, h.handle, lease))
		start(t, processor(t, db, h.handle, lease))
		testrun.Receive(t, "the holder", h.begun)
		registered := testdb.One[time.Time](t, db, `select alive_until from inbox_holders`)
		testrun.Row(t, db, `select alive_until > $1::timestamptz + interval '2.5 seconds' from inbox_holders`, registered)
		close(h.finish)
		done(t, db)
		testrun.Row(t, db, `select deaths = 0 and attempts = 1 from inbox`)
	})

	t.Run("a processor whose registration was lost keeps the messages of its own handlers", func(t *testing.T) {
		db := fresh(t, "m1@k")
		h := newHung(db)
		start(t, processor(t, db, h.handle, func(o *inbox.Options) { o.Policy.Lease = time.Hour })) // so that no beat registers it
		testrun.Receive(t, "the holder", h.begun)
		write(t, db, `delete from inbox_holders`)
		<-time.After(2500 * time.Millisecond) // of two repairs
		testrun.Row(t, db, `select status = 'running' and fence = 1 and deaths = 0 from inbox`)
		close(h.finish)
		done(t, db)
	})

	t.Run("a registration in the future, of a clock that went back, does not protect a dead holder", func(t *testing.T) {
		db := fresh(t, "m1@k")
		write(t, db, `update inbox set status = 'running', fence = 1, attempts = 1, holder = 'dead', claimed_at = now() + interval '1 hour'`)
		write(t, db, `insert into inbox_holders (receiver, holder, alive_until) values ('r', 'dead', now() + interval '1 hour')`)
		start(t, processor(t, db, answer(nil), short))
		done(t, db)
	})

	t.Run("after an outage of the database the other holders have time to register again", func(t *testing.T) {
		db := fresh(t, "m1@k", "m2@l")
		write(t, db, `update inbox set status = 'running', fence = 1, attempts = 1, holder = 'silent' where message_id = 'm1'`)
		start(t, processor(t, failing(failing(db, groupcommit.ErrNotCommitted), groupcommit.ErrNotCommitted), answer(nil), short))
		testrun.Row(t, db, `select status = 'done' from inbox where message_id = 'm2'`)
		<-time.After(2500 * time.Millisecond) // of two repairs
		testrun.Row(t, db, `select status = 'running' from inbox where message_id = 'm1'`)
		done(t, db)
	})

	t.Run("a repair that fails stops no claim and no takeover", func(t *testing.T) {
		db := testdb.Open(t)
		write(t, db, `
create function refuse() returns trigger language plpgsql as $$ begin raise 'planted'; end $$;
create trigger refuse before update on inbox for each row when (old.due_at > '2100-01-01') execute function refuse()`)
		put(t, db, "m1", "")
		put(t, db, "m2", "")
		put(t, db, "m3", "")
		write(t, db, `update inbox set due_at = '2101-01-01' where message_id = 'm2'`) // which a repair corrects
		write(t, db, `update inbox set status = 'running', fence = 1, attempts = 1, holder = 'dead', deaths = 40, claimed_at = now() - interval '1 day'
			where message_id = 'm3'`)
		start(t, processor(t, db, answer(nil), short, func(o *inbox.Options) {
			o.Policy.MaxAttempts, o.Policy.BackoffBase, o.Policy.BackoffCap = 100, 5*time.Hour, 5*time.Hour
		}))
		testrun.Row(t, db, `select bool_and(status = 'done' or message_id = 'm3' and deaths = 41) from inbox where message_id <> 'm2'`)
	})

	for name, test := range map[string]struct {
		policy inbox.DeadLetters
		want   string
	}{
		"Block": {inbox.Block, `m1:dead:t:5 m2:pending:f:0`}, // its fence refuses whom it was taken from
		"Pass":  {inbox.Pass, `m1:dead:f:5 m2:done:f:1`},
	} {
		t.Run("the last of many deaths makes a dead letter, "+name, func(t *testing.T) {
			db := fresh(t, "m1@k", "m2@k", "m3@l")
			write(t, db, `update inbox set status = 'running', fence = 4, attempts = 11, deaths = 11, holder = 'dead' where message_id = 'm1'`)
			start(t, processor(t, db, answer(nil), short, func(o *inbox.Options) { o.Policy.DeadLetters = test.policy }))
			testrun.Row(t, db,
				`select string_agg(concat_ws(':', message_id, status, first, fence), ' ' order by id) = $1 from inbox where ordering_key = 'k'`, test.want)
			testrun.Row(t, db, `select status = 'done' from inbox where message_id = 'm3'`)
		})
	}
}

// A claim that hangs beyond its deadline keeps neither beats from going on, nor the program from its end.
func TestClaim_thatHangs(t *testing.T) {
	testrun.Long(t, "it waits for time-outs")
	t.Parallel()
	db, claims, back := stocked(t, "m1@k"), make(chan struct{}, 1), make(chan struct{})
	defer close(back)
	var away atomic.Bool // as where a standby is away, and the result is long
	begun, ctxEnded := make(chan struct{}), make(chan struct{})
	p := processor(t, hooked{db, func(ctx context.Context, b *pgx.Batch) error {
		if away.Load() && has(b, "claimDue") {
			claims <- struct{}{}
			<-back
		}
		return db.Commit(ctx, b)
	}}, func(ctx context.Context, _ *inbox.Delivery) error {
		close(begun)
		<-ctx.Done()
		close(ctxEnded)
		return context.Cause(ctx)
	}, short, func(o *inbox.Options) { o.Concurrency, o.Drain = 16, 100*time.Millisecond })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	testrun.Receive(t, "a message that runs", begun)
	away.Store(true)
	testrun.Receive(t, "a claim that hangs", claims)
	registered := testdb.One[time.Time](t, db, `select alive_until from inbox_holders`)
	testrun.Row(t, db, `select alive_until > $1::timestamptz + interval '250 ms' from inbox_holders`, registered) // beats go on
	stop()
	testrun.Receive(t, "the end of the handler's context", ctxEnded)
	if err := testrun.Receive(t, "the processor's end", ended); err == nil {
		t.Error("a claim that has not ended is no error")
	}
}

// A processor takes back a message that it has claimed without learning of it, while it beats.
func TestClaim_withAnUnknownOutcome(t *testing.T) {
	testrun.Long(t, "it waits for leases")
	t.Parallel()
	db, cut, cutter := through(t)
	handled, end := make(chan string, 10), make(chan struct{})
	p := processor(t, cut, func(_ context.Context, d *inbox.Delivery) error {
		if handled <- d.ID; d.ID == "alive" {
			<-end
		}
		return nil
	}, short)
	finish := sync.OnceFunc(func() { close(end) })
	defer finish()
	put(t, db, "alive", "")
	start(t, p)
	testrun.Receive(t, "the message that keeps the holder alive", handled)
	p.Pause(true)
	put(t, db, "m1", "k")
	cutter.Arm(failpoint.After, 3)
	p.Pause(false)
	testrun.True(t, "a connection was cut", func() bool { return cutter.Cuts() == 1 })
	testrun.Row(t, db, `select status = 'done' from inbox where message_id = 'm1'`)
	finish()
	done(t, db)
	testrun.Same(t, "other messages that are handled", 1, len(handled))
}

// A message that kills its process becomes a dead letter, and those beside it are handled.
func TestPoison(t *testing.T) {
	testrun.Long(t, "it kills processes")
	t.Parallel()
	url := testdb.URL(t)
	db := testdb.Connect(t, url)
	putMany(t, db, "", 40)
	// A process, as far as the database can tell: when it dies, all its connections break at once,
	// and none of its ends is stored.
	born := func() (ended <-chan struct{}) {
		cutter, running := failpoint.StartCutter(t, url), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		p := processor(t, testdb.OpenAt(t, cutter.URL(), postgres.Options{}), func(ctx context.Context, d *inbox.Delivery) error {
			work := time.After(50 * time.Millisecond)
			if d.ID == "20" {
				cutter.Close()
				cancel()
				work = nil
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-work:
				return nil
			}
		}, func(o *inbox.Options) {
			o.Policy.Lease, o.Concurrency, o.Drain = 200*time.Millisecond, 16, time.Nanosecond
			o.Policy.BackoffBase, o.Policy.BackoffCap = 100*time.Millisecond, 5*time.Second
		})
		t.Cleanup(func() { cancel(); <-running })
		go func() { _ = p.Run(ctx); close(running) }()
		return running
	}
	for range 12 { // so many deaths are three attempts
		testrun.Receive(t, "the death of a process", born())
		write(t, db, `delete from inbox_holders`) // as if its lease had ended
	}
	born()
	testrun.Row(t, db, `select bool_and(status = case message_id when '20' then 'dead' else 'done' end) from inbox`)
}

// What a page has claimed belongs to no handler until its answer comes, and is not taken back meanwhile.
func TestClaim_whoseCommitIsSlow(t *testing.T) {
	testrun.Long(t, "it waits for a commit")
	t.Parallel()
	db := stocked(t)
	p := processor(t, hooked{db, func(ctx context.Context, b *pgx.Batch) error {
		err := db.Commit(ctx, b)
		if has(b, "storeRows") { // the page
			write(t, db, `update inbox set claimed_at = claimed_at - interval '1 minute' where message_id = 'm1'`)
			<-time.After(2500 * time.Millisecond) // of two repairs
		}
		return err
	}}, answer(nil), short)
	start(t, p)
	put(t, db, "m0", "")
	done(t, db)
	receive(t, p, note("m1", ""))
	done(t, db)
	testrun.Row(t, db, `select bool_and(attempts = 1 and deaths = 0) from inbox`)
}

// A processor with nothing to do asks the database once a second, and writes nothing. It finds a message whose
// commit took longer than the overlap of claims.
func TestProcessor_idle(t *testing.T) {
	testrun.Long(t, "it watches polls")
	t.Parallel()
	db := stocked(t, "m0@k")
	var commits atomic.Int64
	start(t, processor(t, hooked{db, func(ctx context.Context, b *pgx.Batch) error { commits.Add(1); return db.Commit(ctx, b) }}, answer(nil)))
	done(t, db)
	began, before := time.Now(), commits.Load()
	testrun.True(t, "six more transactions, one of them of the end", func() bool { return commits.Load() >= before+6 })
	if took := time.Since(began); took < 4*time.Second {
		t.Errorf("six transactions in %v, want at most one a second", took)
	}
	testrun.Row(t, db, `select count(*) = 0 from inbox_holders`)
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, first, due_at)
		select receiver, 'm1', 'm1', type, payload, metadata, payload_hash, true, clock_timestamp() - interval '4 s' from inbox`)
	done(t, db)
}

// While all commits that the pool allows wait for a lock, beats go on.
func TestBeat_besideCommitsThatWait(t *testing.T) {
	testrun.Long(t, "it waits for leases")
	t.Parallel()
	url := testdb.URL(t)
	db := testdb.OpenAt(t, url, postgres.Options{MaxConns: 4, LockTimeout: time.Hour, StatementTimeout: time.Hour})
	put(t, db, "m1", "k")
	h := newHung(db)
	start(t, processor(t, db, h.handle, func(o *inbox.Options) { o.Policy.Lease = time.Second }))
	testrun.Receive(t, "the handler", h.begun)
	write(t, db, `insert into merchants (merchant_id) values ('locked')`)
	locked := testdb.Begin(t, testdb.Connect(t, url).Pool(), `select from merchants where merchant_id = 'locked' for update`)
	commits := make(chan error, 4)
	for range 4 { // of which the pool sends two
		b := &pgx.Batch{}
		b.Queue(`update merchants set webhook_url = webhook_url where merchant_id = 'locked'`)
		go func() { commits <- db.Commit(context.WithoutCancel(t.Context()), b) }()
	}
	testrun.Blocked(t, db, 2)
	registered := testdb.One[time.Time](t, db, `select alive_until from inbox_holders`)
	testrun.Row(t, db, `select alive_until > $1::timestamptz + interval '2 s' from inbox_holders`, registered)
	testdb.Must(t, locked.Rollback(t.Context()))
	for range 4 {
		testdb.Must(t, testrun.Receive(t, "a commit", commits))
	}
	close(h.finish)
	done(t, db)
}

// noMessages is a database in which nothing is ever due. It notes when it was asked.
type noMessages struct {
	groupcommit.DB

	began time.Time
	asked []time.Duration
}

func (db *noMessages) Commit(_ context.Context, b *pgx.Batch) (err error) {
	db.asked = append(db.asked, time.Since(db.began))
	for _, q := range b.QueuedQueries {
		if q.Fn != nil {
			err = errors.Join(err, q.Fn(noResults{}))
		}
	}
	return err
}

type noResults struct{ pgx.BatchResults }

func (noResults) Query() (pgx.Rows, error) { return noRows{}, nil }
func (noResults) QueryRow() pgx.Row        { return noRows{} }

type noRows struct{ pgx.Rows }

func (noRows) Next() bool { return false }
func (noRows) Close()     {}
func (noRows) Err() error { return nil }
func (noRows) Scan(into ...any) error {
	if next, ok := into[0].(*time.Duration); ok {
		*next = time.Second
	}
	return nil
}

// Claims rest for 10 ms. Whatever rings meanwhile, and however often, one claim follows.
func TestProcessor_claimsOnceForAllThatRang(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		holds int             // of Wake
		rings []time.Duration // in order
		end   time.Duration   // when Wake is closed; 0 for never
		want  []time.Duration
	}{
		"nothing":                 {1, nil, 0, []time.Duration{0, 1000 * ms}},
		"a ring":                  {1, []time.Duration{50 * ms}, 0, []time.Duration{0, 50 * ms, 1000 * ms}},
		"a ring in the rest":      {1, []time.Duration{5 * ms}, 0, []time.Duration{0, 10 * ms, 1000 * ms}},
		"rings in the rest":       {1, []time.Duration{3 * ms, 5 * ms, 7 * ms}, 0, []time.Duration{0, 10 * ms, 1000 * ms}},
		"rings in and after it":   {1, []time.Duration{5 * ms, 6 * ms, 15 * ms, 16 * ms, 45 * ms}, 0, []time.Duration{0, 10 * ms, 20 * ms, 45 * ms, 1000 * ms}},
		"a ring beside the poll":  {1, []time.Duration{995 * ms}, 0, []time.Duration{0, 995 * ms, 1005 * ms}},
		"Wake that holds no ring": {0, []time.Duration{50 * ms, 55 * ms}, 0, []time.Duration{0, 50 * ms, 60 * ms, 1000 * ms}},
		"Wake that is closed":     {1, nil, 50 * ms, []time.Duration{0, 50 * ms, 1000 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db, wake := &noMessages{began: time.Now()}, make(chan struct{}, test.holds)
				p, err := inbox.New(inbox.Options{DB: db, Receiver: "r", Handle: answer(nil), Wake: wake})
				testdb.Must(t, err)
				for _, at := range test.rings {
					time.AfterFunc(at, func() { loop.Ring(wake) })
				}
				if test.end > 0 {
					time.AfterFunc(test.end, func() { close(wake) })
				}
				ctx, cancel := context.WithTimeout(t.Context(), 1500*ms)
				defer cancel()
				testdb.Must(t, p.Run(ctx))
				testrun.Same(t, "claims", test.want, db.asked)
			})
		})
	}
}
