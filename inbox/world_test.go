package inbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
)

// put puts a message with an ordering key into the inbox of the receiver r.
func put(t *testing.T, db *postgres.DB, id, key string) {
	t.Helper()
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		values ('r', $1, $2, 't', '', '{}', '')`, id, key)
}

// empty removes all messages for the next case of a test whose cases share a database.
func empty(t *testing.T, db *postgres.DB) {
	t.Helper()
	write(t, db, `truncate inbox, inbox_quarantine`)
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
		Poll: 15 * time.Millisecond, Drain: await.Stall, Log: slog.New(slog.DiscardHandler),
	}
}

// start runs a processor until stop, or until the test ends.
func start(t *testing.T, p *inbox.Processor) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	stop = func() {
		cancel()
		await.Receive(t, "the processor's end", ended)
	}
	t.Cleanup(stop)
	return stop
}

// diary notes what handlers did, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, " ")
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
	Finished  bool
}

func stored(t *testing.T, db postgres.Querier, id string) row {
	t.Helper()
	rows, err := db.Query(t.Context(), `
select status,
       attempts,
       waits,
       fence,
       done_fence,
       coalesce(holder, '')            as holder,
       coalesce(last_error, '')        as last_error,
       due_at - clock_timestamp()      as due_in,
       finished_at is not null         as finished
  from inbox
 where message_id = $1`, id)
	if err != nil {
		t.Fatal(err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[row])
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// silence makes the lease of the message m1 end so long ago that every backoff has
// passed, as if its holder had gone silent. A holder whose lease is an hour does
// not renew it meanwhile.
func silence(t *testing.T, db *postgres.DB) {
	t.Helper()
	write(t, db, `update inbox set due_at = clock_timestamp() - interval '2 days' where message_id = 'm1'`)
}

// effect queues what happens at most once in these tests, by no guard but the
// fence of the delivery beside it.
func effect(b *pgx.Batch, name string) {
	b.Queue(`insert into merchants (merchant_id) values ($1)`, name)
}
