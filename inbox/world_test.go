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

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
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

// fataler is a test, or a draw of one.
type fataler interface {
	await.TB
	Context() context.Context
}

// fresh returns a database for a subtest, which runs beside others. It holds messages of
// "id@key" for the receiver r.
func fresh(t *testing.T, messages ...string) *postgres.DB {
	t.Helper()
	t.Parallel()
	db := testdb.Reused(t)
	for _, m := range messages {
		id, key, _ := strings.Cut(m, "@")
		put(t, db, id, key)
	}
	return db
}

func write(t *testing.T, db *postgres.DB, sql string, args ...any) {
	t.Helper()
	testdb.Exec(t, db.Pool(), sql, args...)
}

// all returns the rows of a query.
func all[T any](t fataler, db postgres.Querier, to pgx.RowToFunc[T], sql string, args ...any) []T {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	testdb.Must(t, err)
	values, err := pgx.CollectRows(rows, to)
	testdb.Must(t, err)
	return values
}

// accept commits a message to the inbox of the receiver r, and returns what became of it.
func accept(t fataler, db *postgres.DB, m inbox.Message) inbox.Reception {
	t.Helper()
	return acceptFor(t, db, "r", m)
}

func acceptFor(t fataler, db *postgres.DB, receiver string, m inbox.Message) inbox.Reception {
	t.Helper()
	b := &pgx.Batch{}
	became := inbox.Accept(b, receiver, m)
	testdb.Must(t, db.Commit(t.Context(), b))
	return *became
}

func note(id, payload string) inbox.Message {
	return inbox.Message{ID: id, Type: "note", OrderingKey: "k", Payload: []byte(payload)}
}

// put puts a message with an ordering key into the inbox of the receiver r.
func put(t *testing.T, db *postgres.DB, id, key string) {
	t.Helper()
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		values ('r', $1, $2, 't', '', '{}', '')`, id, key)
}

// putMany puts messages with these expressions of n as ids and ordering keys.
func putMany(t *testing.T, db *postgres.DB, id, key string, messages int) {
	t.Helper()
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		select 'r', `+id+`, `+key+`, 't', '', '{}', '' from generate_series(1, $1::int) n`, messages)
}

// processor is one with a policy that a test can shorten: leases and backoffs
// are long, so that nothing happens by the clock that a test does not ask for.
func processor(db *postgres.DB, handle inbox.Handler) *inbox.Processor {
	return &inbox.Processor{
		DB: db, Receiver: "r", Holder: "test", Handle: handle, Concurrency: 8,
		Policy: inbox.Policy{
			Lease: time.Hour, MaxAttempts: 3, GiveUpAfter: time.Hour,
			BackoffBase: time.Hour, BackoffCap: 24 * time.Hour,
		},
		MinClaimInterval: 15 * time.Millisecond, Drain: await.Stall, Log: slog.New(slog.DiscardHandler),
	}
}

// start runs a processor until stop, or until the test ends.
func start(t *testing.T, p *inbox.Processor) (stop func()) {
	t.Helper()
	return startUntil(t.Context(), t, p)
}

// startUntil is start, and the processor stops when ctx ends.
func startUntil(ctx context.Context, t *testing.T, p *inbox.Processor) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		await.Receive(t, "the processor's end", ended)
	}
	t.Cleanup(stop)
	return stop
}

// diary notes what handlers did, in order, or keeps the lines of a log.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) Write(line []byte) (int, error) {
	d.note("%s", line)
	return len(line), nil
}

// await waits until it holds a text.
func (d *diary) await(t *testing.T, text string) {
	t.Helper()
	await.True(t, "it holds "+text, func() bool { return strings.Contains(d.String(), text) })
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, " ")
}

func (d *diary) want(t *testing.T, want string) {
	t.Helper()
	if got := d.String(); got != want {
		t.Errorf("noted %q, want %q", got, want)
	}
}

// noting is a handler that notes what it gets, but for the message of startWithFreeSlots.
func noting(d *diary) inbox.Handler {
	return func(_ context.Context, m *inbox.Delivery) error {
		if m.ID != "first" {
			d.note("%s", m.ID)
		}
		return nil
	}
}

// answer is a handler that does nothing but return err.
func answer(err error) inbox.Handler {
	return func(context.Context, *inbox.Delivery) error { return err }
}

// finish is the end of a handler: it commits effects, which happen at most once by no guard but
// the fence of the delivery, together with the end of the delivery.
func finish(ctx context.Context, db *postgres.DB, d *inbox.Delivery, effects ...string) error {
	b := &pgx.Batch{}
	for _, name := range effects {
		b.Queue(`insert into merchants (merchant_id) values ($1)`, name)
	}
	return d.Commit(ctx, db, b)
}

// row is one message as it lies in the inbox.
type row struct {
	Status    string
	Attempts  int
	Waits     int
	Fence     int64
	DoneFence *int64
	Holder    string
	LastError string
	DueIn     time.Duration
}

func stored(t *testing.T, db postgres.Querier, id string) row {
	t.Helper()
	return all(t, db, pgx.RowToStructByName[row], `
select status,
       attempts,
       waits,
       fence,
       done_fence,
       coalesce(holder, '')            as holder,
       coalesce(last_error, '')        as last_error,
       due_at - clock_timestamp()      as due_in
  from inbox
 where message_id = $1`, id)[0]
}

// silence makes the lease of the message m1 end so long ago that every backoff has
// passed, as if its holder had gone silent. A holder whose lease is an hour does
// not renew it meanwhile.
func silence(t *testing.T, db *postgres.DB) {
	t.Helper()
	write(t, db, `update inbox set due_at = clock_timestamp() - interval '2 days' where message_id = 'm1'`)
}

func wantEffects(t *testing.T, db *postgres.DB, want ...string) {
	t.Helper()
	got := all(t, db, pgx.RowTo[string], `select merchant_id from merchants order by 1`)
	if !slices.Equal(got, want) {
		t.Errorf("effects %v, want %v", got, want)
	}
}

// number is the id by which operators name a message.
func number(t *testing.T, db *postgres.DB, id string) int64 {
	t.Helper()
	return testdb.One[int64](t, db, `select id from inbox where message_id = $1`, id)
}
