package groupcommit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

const (
	insert        = `insert into effects (id, twin) values ($1, $2)`
	insertTwin    = `insert into effects (twin, id) values ($1, $2)`
	insertPoison  = `insert into effects (id, twin) values (1 / $1, 0)`
	insertNowhere = `insert into nowhere (id) values ($1)`
	insertDiary   = `insert into diaries (merchant_id, id) values ($1, $2)`
	takeStock     = `update stock set available = available - 1, reserved = reserved + 1 where merchant_id = $1 and sku = $2`
)

// declared are the statements of these tests that may share a commit.
func declared() *groupcommit.Statements {
	return groupcommit.NewStatements(append([]groupcommit.Statement{
		{SQL: insert, ManyRows: `insert into effects (id, twin) select * from unnest($1::int[], $2::int[])`},
		{SQL: insertPoison, ManyRows: `insert into effects (id, twin) select 1 / n, 0 from unnest($1::int[]) as p (n)`},
		{SQL: insertNowhere, ManyRows: `insert into nowhere (id) select * from unnest($1::int[])`},
		{SQL: insertDiary, ManyRows: `insert into diaries (merchant_id, id) select * from unnest($1::text[], $2::int[])`},
		{SQL: takeStock, Locks: "stock", Key: 2},
	}, inbox.Writes()...)...)
}

// effects is a database with one table: an id once, and a twin that is checked
// as late as the commit.
func effects(t *testing.T, o postgres.Options) (db *postgres.DB, address string) {
	t.Helper()
	address = testdb.URL(t)
	db = testdb.OpenAt(t, address, o)
	testdb.Exec(t, db.Pool(), createEffects)
	return db, address
}

const createEffects = `
create table effects (
  id   int constraint effects_once primary key constraint effects_not_negative check (id >= 0),
  twin int,
  constraint effects_twin_once unique (twin) deferrable initially deferred
)`

func batch(ids ...int) *pgx.Batch {
	b := &pgx.Batch{}
	for _, id := range ids {
		b.Queue(insert, id, id)
	}
	return b
}

// stored are the ids that are there.
func stored(t *testing.T, db postgres.Querier) []int {
	t.Helper()
	return testdb.All[int](t, db, `select id from effects order by id`)
}

func wantStored(t *testing.T, db postgres.Querier, want ...int) {
	t.Helper()
	testrun.Same(t, "stored", append([]int{}, want...), stored(t, db))
}

func TestCommit(t *testing.T) {
	t.Parallel()

	db, _ := effects(t, postgres.Options{})
	for _, of := range []*postgres.DB{db, db.Tenant("acme")} {
		if err := of.Commit(t.Context(), &pgx.Batch{}); err == nil {
			t.Error("an empty batch was committed")
		}
	}
	t.Run("a constraint that is checked at commit refuses too", func(t *testing.T) {
		b := &pgx.Batch{}
		b.Queue(insert, 1, 7)
		b.Queue(insert, 2, 7)
		if err := db.Commit(t.Context(), b); groupcommit.Constraint(err) != "effects_twin_once" {
			t.Errorf("the error is %v, want one of effects_twin_once", err)
		}
		wantStored(t, db)
	})
}

// A batch is the caller's: it may be committed again as it is, also where its statements are
// prepared on no connection any more.
func TestCommitOfACutConnection(t *testing.T) {
	testrun.Long(t, "it has a database for each case")
	t.Parallel()
	for _, test := range []struct {
		name     string
		side     failpoint.Side
		executes int
		want     groupcommit.Outcome
		again    string // the constraint that refuses the same batch
	}{
		{"cut before the server has the batch", failpoint.Before, 2, groupcommit.Unknown, ""},
		{"cut after the server has committed it", failpoint.After, 2, groupcommit.Unknown, "effects_once"},
		{"cut before its statements are prepared", failpoint.Before, 0, groupcommit.NotCommitted, ""},
		{"cut after its statements are prepared", failpoint.After, 0, groupcommit.NotCommitted, ""},
	} {
		for _, writes := range []*groupcommit.Statements{nil, declared()} {
			t.Run(fmt.Sprintf("%s, declared: %v", test.name, writes != nil), func(t *testing.T) {
				t.Parallel()
				direct, address := effects(t, postgres.Options{})
				proxy := failpoint.StartCutter(t, address)
				db, b := testdb.OpenAt(t, proxy.URL(), postgres.Options{MaxConns: 1, Writes: writes}), batch(1, 2)
				proxy.Arm(test.side, test.executes)
				err := db.Commit(t.Context(), b)
				if groupcommit.OutcomeOf(err) != test.want || errors.Is(err, groupcommit.ErrUnknown) && errors.Is(err, groupcommit.ErrNotCommitted) {
					t.Errorf("the error is %v, want outcome %d", err, test.want)
				}
				if proxy.Cuts() != 1 {
					t.Fatalf("%d connections were cut, want 1", proxy.Cuts())
				}
				if err := db.Commit(t.Context(), b); groupcommit.Constraint(err) != test.again || test.again == "" && err != nil {
					t.Errorf("the same batch again has the error %v, want one of %q", err, test.again)
				}
				wantStored(t, direct, 1, 2)
			})
		}
	}

	t.Run("a session that is ended under a commit leaves its outcome unknown", func(t *testing.T) {
		t.Parallel()
		db, _ := effects(t, postgres.Options{Application: "victim"})
		release := hold(t, db, 1)
		defer release()
		committed := commit(t.Context(), db, batch(1))
		testrun.Row(t, db.Pool(), `
select count(pg_terminate_backend(pid)) = 1
  from pg_stat_activity
 where datname = current_database()
   and wait_event_type = 'Lock'`)
		if err := <-committed; !errors.Is(err, groupcommit.ErrUnknown) {
			t.Errorf("the error is %v, want ErrUnknown", err)
		}
	})
}

// A caller leaves at the deadline of its context, not when that is cancelled, and what was sent goes on.
func TestCommit_outlivesItsCaller(t *testing.T) {
	testrun.Long(t, "it waits for time-outs")
	t.Parallel()
	db, _ := effects(t, postgres.Options{LockTimeout: time.Hour})
	release := hold(t, db, 2)
	ctx, cancel := context.WithCancel(t.Context())
	committed := commit(ctx, db, batch(1, 2))
	soon, leave := context.WithTimeout(t.Context(), 2*time.Second) // it makes a connection first
	defer leave()
	b := batch(3, 2)
	b.QueuedQueries[0].Exec(func(pgconn.CommandTag) error { t.Error("a callback was called after its caller had left"); return nil })
	if err := db.Commit(soon, b); groupcommit.OutcomeOf(err) != groupcommit.Unknown || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v, want an unknown outcome", err)
	}
	testrun.Blocked(t, db, 2)
	cancel()
	release()
	err := <-committed // one of the two has the id
	testrun.True(t, "one of them is committed", func() bool {
		return slices.Equal(stored(t, db), map[bool][]int{true: {1, 2}, false: {2, 3}}[err == nil])
	})
	testdb.Must(t, db.Commit(ctx, batch(4)))
}

func TestOutcomeOf_saysWhatBecameOfACommit(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for _, test := range []struct {
		codes   string
		want    groupcommit.Outcome
		guarded bool
	}{
		{"23505 23514 23503 23502 23P01", groupcommit.Refused, true}, // unique, check, foreign key, not null, exclusion
		{"22P02 42501", groupcommit.Refused, false},                  // a value that cannot be read, no privilege
		{"40001 40P01 57014", groupcommit.NotCommitted, false},       // serialization, deadlock, statement time-out
		{"55P03", groupcommit.Locked, false},                         // lock time-out
		{"57P01 57P03 08006", groupcommit.Unknown, false},            // a shutdown, a start, a lost connection
	} {
		for code := range strings.FieldsSeq(test.codes) {
			b := &pgx.Batch{}
			b.Queue(fmt.Sprintf(`do $$ begin raise using errcode = '%s', constraint = 'the_guard', message = 'planted'; end $$`, code))
			err := fmt.Errorf("a caller's words: %w", db.Commit(t.Context(), b))
			if got := groupcommit.OutcomeOf(err); got != test.want {
				t.Errorf("%s: the outcome is %d, want %d", code, got, test.want)
			}
			if got := groupcommit.Constraint(err); got != map[bool]string{true: "the_guard"}[test.guarded] {
				t.Errorf("%s: the constraint is %q", code, got)
			}
		}
	}
	for _, err := range []error{errors.New("something"), context.DeadlineExceeded, &pgconn.PgError{Severity: "ERROR"}} {
		if groupcommit.Constraint(err) != "" || groupcommit.OutcomeOf(err) != groupcommit.Refused {
			t.Errorf("%v is no refusal without a guard", err)
		}
	}
	if groupcommit.OutcomeOf(nil) != groupcommit.Committed || groupcommit.Constraint(nil) != "" {
		t.Error("no error is taken for a refusal")
	}
}

// hold inserts an id in a transaction that stays open until it is rolled back by release.
func hold(t *testing.T, db *postgres.DB, id int) (release func()) {
	t.Helper()
	tx := testdb.Begin(t, db.Pool(), insert, id, id)
	return func() { testdb.Must(t, tx.Rollback(t.Context())) }
}

// commit commits beside the test.
func commit(ctx context.Context, db *postgres.DB, b *pgx.Batch) <-chan error {
	committed := make(chan error, 1)
	go func() { committed <- db.Commit(ctx, b) }()
	return committed
}

// What Confirm returns is about a commit that the server has acknowledged, whatever it looks like.
func TestCommit_thatIsNotConfirmedIsUnknown(t *testing.T) {
	t.Parallel()
	db, _ := effects(t, postgres.Options{})
	refusal := errors.Join(groupcommit.ErrNotCommitted, &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "55P03"})
	c := groupcommit.New(db.Pool(), groupcommit.Options{
		Writes: declared(), Confirm: func(context.Context, *pgxpool.Conn) error { return refusal },
	})
	for i, err := range append(together(t, c, committing(c, numbered(8)...)...), c.Commit(t.Context(), batch(9))) {
		if groupcommit.OutcomeOf(err) != groupcommit.Unknown || !errors.Is(err, refusal) {
			t.Errorf("batch %d has the error %v, want an unknown outcome", i+1, err)
		}
	}
	wantStored(t, db, 1, 2, 3, 4, 5, 6, 7, 8, 9)
}

// The batch that came last has the least time. Its caller leaves, and the others get their connection.
func TestGroupCommit_waitsForAConnectionUntilItsLatestDeadline(t *testing.T) {
	testrun.Long(t, "it waits for deadlines")
	t.Parallel()
	db, _ := effects(t, postgres.Options{Writes: declared(), MaxConns: 1})
	units := committing(db, numbered(3)...)
	hurried := units[2]
	units[2] = func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
		defer cancel()
		return hurried(ctx)
	}
	results, release := queueUnits(t, db.Committer(), units...)
	conn, err := db.Pool().Acquire(t.Context())
	testdb.Must(t, err)
	defer conn.Release()
	release()
	if err := <-results[2]; groupcommit.OutcomeOf(err) == groupcommit.Committed {
		t.Error("a batch without a connection is committed")
	}
	select {
	case err := <-results[0]:
		t.Errorf("a batch that has time has the error %v", err)
	case <-time.After(100 * time.Millisecond):
		conn.Release()
		wantNoErrors(t, []error{<-results[0], <-results[1]})
	}
}

// While no standby confirms, at most half of the pool's connections, and as many sessions of the
// server, are in commits, however often callers leave and try again. What was not sent never is,
// and what was is committed once the standby is back.
func TestCommit_thatHangsLeavesConnectionsToReads(t *testing.T) {
	testrun.Long(t, "it starts a server")
	t.Parallel()
	server := testrun.Server(t, local.Options{InMemory: true, Fsync: true})
	s := testdb.StandbyOf(t, server, "postgres")
	const conns, most = 5, 2
	testdb.Exec(t, s, `create database service`)
	db := testdb.OpenAt(t, server.URL("service"), postgres.Options{MaxConns: conns, Writes: declared(), CommitTimeout: time.Second})
	testdb.Exec(t, db.Pool(), createEffects)
	testdb.Warm(t, db.Pool(), conns)
	s.Leaves(t)
	next, units := 0, []func(context.Context) error{}
	for range 8 * most {
		next += 3
		undeclared, read := &pgx.Batch{}, &pgx.Batch{}
		undeclared.Queue(`insert into effects (id) values ($1)`, next)
		read.Queue(`insert into effects (id) values ($1) returning id`, next+1).QueryRow(func(row pgx.Row) error { return row.Scan(new(int)) })
		units = append(units, committing(db, undeclared, read, batch(next+2))...)
	}
	errs := make([]error, len(units))
	var all sync.WaitGroup
	for i, unit := range units {
		all.Go(func() { errs[i] = unit(t.Context()) })
	}
	all.Wait()
	var sent []int
	for i, err := range errs {
		switch {
		case groupcommit.OutcomeOf(err) == groupcommit.Unknown:
			sent = append(sent, i+3)
		case groupcommit.OutcomeOf(err) != groupcommit.NotCommitted || !errors.Is(err, groupcommit.ErrNotSent):
			t.Errorf("the error is %v, want an unknown outcome or ErrNotSent", err)
		}
	}
	if err := db.Commit(t.Context(), batch(1)); !errors.Is(err, groupcommit.ErrNotSent) {
		t.Errorf("a caller that comes later gets %v, want ErrNotSent", err)
	}
	waiting := func() int { // those that no client has included
		return testdb.One[int](t, s, `select count(*) from pg_stat_activity where wait_event = 'SyncRep' and datname = 'service'`)
	}
	testrun.True(t, "the sessions of what was sent are in commits", func() bool { return waiting() >= most })
	if got := waiting(); got != most || len(sent) < got {
		t.Errorf("%d sessions are in commits, and %d batches were sent, want %d sessions", got, len(sent), most)
	}
	testdb.Must(t, db.QueryRow(testrun.Bounded(t), `select`).Scan())
	if !testrun.Within(testrun.Stall, db.Committer().Stalled) {
		t.Error("the committer is not stalled")
	}
	s.Returns(t)
	testrun.True(t, "what was sent is committed", func() bool { return slices.Equal(stored(t, db), sent) })
	testrun.True(t, "a commit is confirmed", func() bool { next++; return db.Commit(t.Context(), batch(next+2)) == nil })
	if slices.Contains(stored(t, db), 1) {
		t.Error("what was not sent is committed")
	}
	if db.Committer().Stalled() || db.Committer().Stats().Late != 0 {
		t.Error("the committer is still stalled")
	}
}

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
