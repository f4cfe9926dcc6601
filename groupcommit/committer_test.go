package groupcommit_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// queueUnits returns the results of units that queue in their order until release, so that one group
// commit takes them all.
func queueUnits(t *testing.T, c *groupcommit.Committer, units ...func(context.Context) error) (results []chan error, release func()) {
	t.Helper()
	release = c.HoldCommits()
	for i, unit := range units {
		result := make(chan error, 1)
		results = append(results, result)
		go func() { result <- unit(t.Context()) }()
		for c.Pending() <= i { // soon
			select {
			case err := <-result:
				t.Fatalf("unit %d has ended before it queued: %v", i, err)
			default:
				runtime.Gosched()
			}
		}
	}
	return results, release
}

// together commits units in one group commit, and returns the error of each.
func together(t *testing.T, c *groupcommit.Committer, units ...func(context.Context) error) []error {
	t.Helper()
	results, release := queueUnits(t, c, units...)
	release()
	errs := make([]error, len(units))
	for i := range results {
		errs[i] = <-results[i]
	}
	if n := c.Pending(); n != 0 {
		t.Errorf("%d are still queued", n)
	}
	return errs
}

// committing are units of one batch each.
func committing(db groupcommit.DB, batches ...*pgx.Batch) []func(context.Context) error {
	units := make([]func(context.Context) error, len(batches))
	for i, b := range batches {
		units[i] = func(ctx context.Context) error { return db.Commit(ctx, b) }
	}
	return units
}

// numbered are n batches of the ids 1 to n.
func numbered(n int) []*pgx.Batch {
	batches := make([]*pgx.Batch, n)
	for i := range batches {
		batches[i] = batch(i + 1)
	}
	return batches
}

func wantNoErrors(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Errorf("unit %d has the error %v", i+1, err)
		}
	}
}

// Of 65 batches one is over: a group has at most 64.
func TestGroupCommit_sendsQueuedBatchesAsOneTransaction(t *testing.T) {
	t.Parallel()
	db, _ := effects(t, postgres.Options{Writes: declared()})
	wantNoErrors(t, together(t, db.Committer(), committing(db, numbered(65)...)...))
	if got, want := db.Committer().Stats(), (groupcommit.Stats{Commits: 1, Batches: 64}); got != want {
		t.Errorf("group commits are %+v, want %+v", got, want)
	}
	if n := len(stored(t, db)); n != 65 {
		t.Errorf("%d batches are stored", n)
	}
}

// tracer notes the batches of each caller, and which of them failed.
type tracer struct {
	*multitracer.Tracer // of all else nothing

	mu     sync.Mutex
	traces map[string]string
}

type caller struct{}

func (tr *tracer) note(ctx context.Context, what string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if name, ok := ctx.Value(caller{}).(string); ok { // else the test's own, and group commits
		tr.traces[name] += what
	}
}

func (tr *tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	tr.note(ctx, strconv.Itoa(data.Batch.Len()))
	return ctx
}

func (tr *tracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	tr.note(ctx, map[bool]string{true: " failed, ", false: " ended, "}[data.Err != nil])
}

// The trace of a caller has its own statements and no others.
func TestGroupCommit_tracesEachBatchForItsCaller(t *testing.T) {
	t.Parallel()
	traces := &tracer{Tracer: multitracer.New(), traces: map[string]string{}}
	db, _ := effects(t, postgres.Options{Writes: declared(), Tracer: traces})
	testdb.Must(t, db.Commit(t.Context(), batch(100)))
	as := func(name string, b *pgx.Batch) func(context.Context) error {
		return func(ctx context.Context) error {
			return db.Commit(context.WithValue(ctx, caller{}, name), b)
		}
	}
	errs := together(t, db.Committer(), as("one", batch(1)), as("three", batch(2, 3, 4)), as("refused", batch(5, 100)), as("beside", batch(6)))
	if errs[0] != nil || errs[1] != nil || groupcommit.Constraint(errs[2]) != "effects_once" || errs[3] != nil {
		t.Fatalf("the errors are %v", errs)
	}
	want := map[string]string{ // in the group commit, and individually
		"one": "1 ended, 1 ended, ", "three": "3 ended, 3 ended, ", "refused": "2 ended, 2 failed, ", "beside": "1 ended, 1 ended, ",
	}
	testrun.Same(t, "traces", want, traces.traces)
}

// diaries are a table of tenants, whose rows have the lock time-out under which they were written:
// the owner's pool of it, and the worker's.
func diaries(t *testing.T, o postgres.Options) (owner, db *postgres.DB) {
	t.Helper()
	address := testdb.URL(t)
	owner = testdb.OpenAt(t, address, postgres.Options{})
	testdb.Exec(t, owner.Pool(), `
create table diaries (
  merchant_id text,
  id          int,
  lock_wait   text default current_setting('lock_timeout')
);
alter table diaries enable row level security;
create policy tenant on diaries to payonce_worker using (merchant_id = current_setting('payonce.merchant', true));
grant select, insert on diaries to payonce_worker`)
	o.Role, o.Writes = postgres.RoleWorker, declared()
	return owner, testdb.OpenAt(t, address, o)
}

func note(id int) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(insertDiary, "acme", id)
	return b
}

// The settings of a batch hold for no other, and those of a group commit end with it.
func TestGroupCommit_keepsSettingsApart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		own           time.Duration
		shared, alone string
	}{
		{25 * time.Millisecond, "25ms", "25ms"},
		{5 * time.Second, "200ms", "5s"},
	} {
		t.Run(test.own.String(), func(t *testing.T) {
			t.Parallel()
			owner, db := diaries(t, postgres.Options{LockTimeout: test.own})
			acme := db.Tenant("acme")
			setting := &pgx.Batch{}
			setting.Queue(`select set_config('lock_timeout', '7000', true)`)
			setting.QueuedQueries = append(setting.QueuedQueries, note(3).QueuedQueries...)
			reading := note(4)
			reading.QueuedQueries[0].Exec(func(pgconn.CommandTag) error { return nil })
			wantNoErrors(t, []error{acme.Commit(t.Context(), setting), acme.Commit(t.Context(), reading)})
			wantNoErrors(t, together(t, db.Committer(), committing(acme, note(1), note(2))...))
			wantNoErrors(t, []error{acme.Commit(t.Context(), note(5))})
			want(t, owner, `select id || ' ' || lock_wait from diaries order by id`, "1 "+test.shared, "2 "+test.shared, "3 7s", "4 "+test.alone, "5 "+test.alone)
			want(t, db, `select count(*)::text from diaries`, "0") // the next transaction has no tenant
		})
	}
}

// A commit reports what its declared statements wake, each name once, and one that is refused does not.
func TestCommit_reportsWhatItWakes(t *testing.T) {
	t.Parallel()
	db, _ := effects(t, postgres.Options{})
	wakes := func(arguments []any) string {
		id, _ := arguments[0].(int)
		return fmt.Sprint("odd ", id%2 == 1)
	}
	woken := make(chan []string, 10)
	c := groupcommit.New(db.Pool(), groupcommit.Options{
		Writes:    groupcommit.NewStatements(groupcommit.Statement{SQL: insert, Wakes: wakes}, groupcommit.Statement{SQL: insertTwin}),
		Committed: func(names []string) { woken <- names },
	})
	undeclared, silent := batch(10), &pgx.Batch{}
	undeclared.Queue(`select 1`)
	silent.Queue(insertTwin, 11, 11)
	for _, test := range []struct {
		batch   *pgx.Batch
		outcome groupcommit.Outcome
		want    []string
	}{
		{batch(1, 3, 2, 5), groupcommit.Committed, []string{"odd true", "odd false"}},
		{undeclared, groupcommit.Committed, []string{"odd false"}},
		{batch(7, 1), groupcommit.Refused, nil},
		{silent, groupcommit.Committed, nil},
	} {
		if err := c.Commit(t.Context(), test.batch); groupcommit.OutcomeOf(err) != test.outcome {
			t.Errorf("the error is %v", err)
		}
		wantWoken(t, woken, test.want)
	}
	wantNoErrors(t, together(t, c, committing(c, batch(21), batch(23), batch(25))...))
	wantWoken(t, woken, []string{"odd true"})
}

func wantWoken(t *testing.T, woken <-chan []string, want []string) {
	t.Helper()
	var got []string
	select {
	case got = <-woken:
	default:
	}
	testrun.Same(t, "woken", want, got)
}

// The ends of several deliveries are one statement. It is of the inbox, and is tested here
// since only a group commit sends it.

// held are messages of the inbox, numbered from 1, each with its holder's fence. They
// lie in the table from the last to the first.
func held(t *testing.T, o postgres.Options, fences ...int64) *postgres.DB {
	t.Helper()
	o.Writes = declared()
	db, _ := effects(t, o)
	claimedUnder(t, db, fences...)
	return db
}

func claimedUnder(t *testing.T, db *postgres.DB, fences ...int64) {
	t.Helper()
	if _, err := db.Pool().Exec(context.WithoutCancel(t.Context()), `
insert into inbox
       (id, receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, fence, first, holder)
overriding system value
select n, 'r', n, n, 't', '', '{}', '', 'running', fence, true, 'h'
  from unnest($1::bigint[]) with ordinality as f (fence, n)
 order by n desc`, fences); err != nil {
		t.Fatal(err)
	}
}

// end queues the end of a delivery as the inbox does; only the inbox can make a delivery.
func end(b *pgx.Batch, id, fence int64) {
	b.Queue(inbox.Writes()[1].SQL, id, fence, strconv.FormatInt(id, 10), "h")
}

// ending has an effect and ends a delivery.
func ending(effect int, id, fence int64) *pgx.Batch {
	b := batch(effect)
	end(b, id, fence)
	return b
}

func want(t *testing.T, db *postgres.DB, sql string, want ...string) {
	t.Helper()
	testrun.Same(t, sql, want, testdb.All[string](t, db, sql))
}

// Of two holders of one message in a group commit the older one alone is refused.
func TestDeliveries_refuseTheOlderOfTwoHolders(t *testing.T) {
	t.Parallel()
	db := held(t, postgres.Options{}, 2, 2, 2)
	errs := together(t, db.Committer(), committing(db, ending(1, 1, 2), ending(99, 2, 1), ending(2, 2, 2), ending(3, 3, 2))...)
	if err := errs[1]; !inbox.IsLost(err) {
		t.Errorf("it has the error %v", err)
	}
	wantNoErrors(t, slices.Delete(errs, 1, 2))
	wantStored(t, db, 1, 2, 3)
	want(t, db, `select id::text from inbox where status = 'done' and done_fence = fence and finished_at is not null order by id`, "1", "2", "3")
}

// A group commit locks articles and then messages, each by key, whatever the order in which its batches came,
// and also where the table is read as it lies, which is from the last to the first. So two of them that meet
// in several rows do not deadlock.
func TestGroupCommit_locksInOneOrder(t *testing.T) {
	t.Parallel()
	db := held(t, postgres.Options{
		Settings: map[string]string{"enable_indexscan": "off"}, LockTimeout: time.Hour, StatementTimeout: time.Hour,
	}, 1, 1, 1, 1, 1)
	testdb.Exec(t, db.Pool(), `insert into merchants (merchant_id) values ('acme'), ('globex')`)
	testdb.Exec(t, db.Pool(), `insert into stock (merchant_id, sku, supplied, available) select 'acme', n, 9, 9 from generate_series(1, 5) n union all select 'globex', '1', 9, 9`)
	db.Committer().WaitForLocks()
	article := testdb.Begin(t, db.Pool(), `select from stock where sku = '2' for no key update`)
	message := testdb.Begin(t, db.Pool(), `select from inbox where id = 3 for no key update`)
	var batches []*pgx.Batch
	for _, n := range []int{5, 3, 1, 4, 2} {
		b := ending(n, int64(n), 1)
		if n == 5 {
			b.Queue(takeStock, "globex", "1")
		}
		b.Queue(takeStock, "acme", strconv.Itoa(n))
		batches = append(batches, b)
	}
	results, release := queueUnits(t, db.Committer(), committing(db, batches...)...)
	release()
	testrun.Blocked(t, db, 1)
	want(t, db, `select merchant_id || sku from stock order by 1 for no key update skip locked`, "acme3", "acme4", "acme5", "globex1")
	testdb.Must(t, article.Commit(t.Context()))
	testrun.Row(t, db, `select count(*) = 0 from (select from stock for no key update skip locked) free`)
	testrun.Blocked(t, db, 1)
	want(t, db, `select id::text from inbox order by id for no key update skip locked`, "4", "5")
	testdb.Must(t, message.Commit(t.Context()))
	for _, result := range results {
		testdb.Must(t, <-result)
	}
	want(t, db, `select count(distinct cmin::text)::text from inbox where status = 'done'`, "1") // one statement ended all of them
	want(t, db, `select merchant_id || sku from stock where reserved = 1 order by 1`, "acme1", "acme2", "acme3", "acme4", "acme5", "globex1")
}

// Of two messages of one id in a group commit the second is known: counted, or a dead letter.
func TestDeliveries_ofOneID(t *testing.T) {
	t.Parallel()
	db, _ := effects(t, postgres.Options{Writes: declared()})
	message := func(key, payload string) *pgx.Batch {
		b := &pgx.Batch{}
		inbox.Append(b, "r", inbox.Message{ID: "m" + key[:1], OrderingKey: key, Payload: []byte(payload)})
		return b
	}
	wantNoErrors(t, together(t, db.Committer(), committing(db, message("a", "1"), message("a", "1"), message("b", "1"), message("b", "2"))...))
	wantNoErrors(t, together(t, db.Committer(), committing(db, message("c1", "1"), message("c2", "2"))...))
	want(t, db, `select format('%s %s %s', split_part(message_id, ':', 1), status, duplicates) from inbox order by status desc, message_id`,
		"ma pending 1", "mb pending 0", "mc pending 0", "unreadable dead 0", "unreadable dead 0")
}
