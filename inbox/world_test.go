package inbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// openPool is a pool on a database of its own for an example.
func openPool() (pool *pgxpool.Pool, end func()) {
	db, end := testdb.Example()
	if _, err := db.Pool().Exec(context.Background(), `create table sales (item text)`); err != nil {
		panic(err)
	}
	return db.Pool(), end
}

// fresh returns a database for a subtest, which is parallel. Its receiver r has messages of "id@key".
func fresh(t *testing.T, messages ...string) *postgres.DB {
	t.Helper()
	t.Parallel()
	return stocked(t, messages...)
}

// stocked is fresh for a test that is parallel already.
func stocked(t *testing.T, messages ...string) *postgres.DB {
	t.Helper()
	db := testdb.Reused(t)
	for _, m := range messages {
		id, key, _ := strings.Cut(m, "@")
		put(t, db, id, key)
	}
	return db
}

func put(t *testing.T, db groupcommit.DB, id, key string) {
	t.Helper()
	testdb.Must(t, send(t.Context(), db, inbox.Message{ID: id, OrderingKey: key, Payload: []byte(id)}))
}

// send appends a message to the inbox of the receiver r in a commit of its own.
func send(ctx context.Context, db groupcommit.DB, m inbox.Message) error {
	b := &pgx.Batch{}
	inbox.Append(b, "r", m)
	return db.Commit(ctx, b)
}

// receive stores a page.
func receive(t *testing.T, p *inbox.Processor, page ...inbox.Message) {
	t.Helper()
	_, err := p.Receive(t.Context(), page...)
	testdb.Must(t, err)
}

func write(t *testing.T, db *postgres.DB, sql string, args ...any) {
	t.Helper()
	testdb.Exec(t, db.Pool(), sql, args...)
}

// processor is one whose backoffs are long, so that nothing is repeated that a test does not ask for.
func processor(t *testing.T, db groupcommit.DB, handle inbox.Handler, change ...func(*inbox.Options)) *inbox.Processor {
	t.Helper()
	o := inbox.Options{
		DB: db, Receiver: "r", Handle: handle, Concurrency: 8, Drain: testrun.Stall, Log: slog.New(slog.DiscardHandler),
		Policy: inbox.Policy{MaxAttempts: 3, GiveUpAfter: time.Hour, BackoffBase: 12 * time.Hour, BackoffCap: 48 * time.Hour},
	}
	for _, c := range change {
		c(&o)
	}
	p, err := inbox.New(o)
	testdb.Must(t, err)
	return p
}

// start runs a processor until stop, or until the test ends.
func start(t *testing.T, p *inbox.Processor) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := testrun.Receive(t, "the processor's end", ended); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// hooked is a database whose commits are those of a function.
type hooked struct {
	groupcommit.DB

	commit func(ctx context.Context, b *pgx.Batch) error
}

func (h hooked) Commit(ctx context.Context, b *pgx.Batch) error { return h.commit(ctx, b) }

// failing is a database whose first commit has an error, and is not sent.
func failing(db groupcommit.DB, err error) groupcommit.DB {
	var first sync.Once
	return hooked{db, func(ctx context.Context, b *pgx.Batch) (failed error) {
		if first.Do(func() { failed = err }); failed != nil {
			return failed
		}
		return db.Commit(ctx, b)
	}}
}

// has reports whether a batch has a statement of the inbox.
func has(b *pgx.Batch, statement string) bool {
	return slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool { return strings.Contains(q.SQL, "-- inbox."+statement+"\n") })
}

// answer is a handler that does nothing but return err.
func answer(err error) inbox.Handler {
	return func(context.Context, *inbox.Delivery) error { return err }
}

// hung is a handler that holds what it gets until it may finish, and then commits the end.
type hung struct {
	db     groupcommit.DB
	begun  chan *inbox.Delivery
	lost   chan error // why the context of a delivery ended
	finish chan struct{}
	ended  chan error // of the commit
}

func newHung(db groupcommit.DB) *hung {
	return &hung{db, make(chan *inbox.Delivery, 10), make(chan error, 10), make(chan struct{}), make(chan error, 10)}
}

func (h *hung) handle(ctx context.Context, d *inbox.Delivery) error {
	h.begun <- d
	context.AfterFunc(ctx, func() { h.lost <- context.Cause(ctx) })
	<-h.finish // whatever its context says
	b := &pgx.Batch{}
	b.Queue(`insert into merchants (merchant_id) values ($1)`, fmt.Sprint(d.ID, "-", d.Attempt))
	err := d.Commit(ctx, h.db, b)
	h.ended <- err
	return err
}

// done waits until all messages are done.
func done(t *testing.T, db *postgres.DB) {
	t.Helper()
	testrun.Progress(t, "all messages are done", func() (string, bool) {
		open := testdb.All[string](t, db, `
select concat_ws(' ', message_id, status, 'first', first, 'nudged', nudged, 'attempts', attempts, 'waits', waits, 'due in', due_at)
  from inbox where status <> 'done' order by id limit 10`)
		return strings.Join(open, "\n"), len(open) == 0
	})
}
