package inbox_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// These three were found by trying to break the processor: each of them parked
// healthy messages although nobody had died.

func TestALapsedLeaseIsRevivedByTheProcessThatStillWorks(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	waiting(t, db, "m", `{}`)
	var calls atomic.Int32
	begun, finish := make(chan struct{}, 100), make(chan struct{})
	runProcessor(t, db, func(ctx context.Context, _ inbox.Delivery) (inbox.Result, error) {
		calls.Add(1)
		begun <- struct{}{}
		select {
		case <-finish:
			return inbox.Complete, nil
		case <-ctx.Done():
			return inbox.Complete, context.Cause(ctx)
		}
	})
	<-begun
	// What a stop of the process, or of the database, for longer than a lease leaves.
	write(t, db, `update inbox set due_at = clock_timestamp() - interval '1 second'`)
	await(t, db, `select due_at > clock_timestamp() from inbox`)
	close(finish)
	await(t, db, `select status = 'done' and attempts = 1 and fence = 1 from inbox`)
	if n := calls.Load(); n != 1 {
		t.Errorf("%d handlers ran", n)
	}
}

func TestAnErrorThatQuotesHostileBytesEndsItsClaim(t *testing.T) {
	t.Parallel()
	for name, tried := range map[string]struct {
		err  error
		want string
	}{
		"wait": {
			&inbox.WaitError{AtLeast: time.Hour, Err: errors.New("malformed header: \x00\xff")},
			`select status = 'pending' and attempts = 0 and waits = 1 and last_error like 'waiting: malformed header%' from inbox`,
		},
		"park": {
			&inbox.ParkError{Err: errors.New("\xff\x00")},
			`select status = 'dead' and attempts = 1 from inbox`,
		},
		"failure": {
			errors.New("\x00\xff"),
			`select status = 'dead' and attempts = 3 and last_error is not null from inbox`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			waiting(t, db, "m", `{}`)
			runProcessor(t, db, func(context.Context, inbox.Delivery) (inbox.Result, error) {
				return inbox.Complete, tried.err
			})
			await(t, db, tried.want)
		})
	}
}

func TestStrangeMetadataOfOneMessageHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	waiting(t, db, "strange", `{"a": 1}`)
	for _, id := range []string{"a", "b", "c"} {
		waiting(t, db, id, `{"type": "t"}`)
	}
	runProcessor(t, db, func(context.Context, inbox.Delivery) (inbox.Result, error) {
		return inbox.Complete, nil
	})
	await(t, db, `select bool_and(status = 'done' and attempts = 1) from inbox`)
}

// One message that ends every process which takes it must not park those that
// happen to be held beside it: after a silent end they are taken again apart.
func TestMessagesOfASilentHolderAreTakenAgainApart(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, attempts, fence, due_at)
		select 'r', n, n, 't', '', '{}', '', 'running', 1, 1, clock_timestamp() - interval '30 minutes' from generate_series(1, 64) n`)
	runProcessor(t, db, func(context.Context, inbox.Delivery) (inbox.Result, error) {
		return inbox.Complete, nil
	}, func(p *inbox.Policy) { p.BackoffBase, p.BackoffCap = time.Hour, time.Hour })
	// Half of the backoff has passed, so about half of them are due.
	await(t, db, `select count(*) between 16 and 48 from inbox where status = 'done'`)
	waiting(t, db, "after", `{}`)
	await(t, db, `select status = 'done' from inbox where message_id = 'after'`)
	await(t, db, `select count(*) between 16 and 48 from inbox where status = 'running'`)
}

func TestAWaitClearsTheAttemptsBeforeIt(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	waiting(t, db, "m", `{}`)
	write(t, db, `update inbox set attempts = 2`)
	runProcessor(t, db, func(context.Context, inbox.Delivery) (inbox.Result, error) {
		return inbox.Complete, &inbox.WaitError{AtLeast: time.Hour, Err: errors.New("closed")}
	})
	await(t, db, `select status = 'pending' and waits = 1 and attempts = 0 from inbox`)
}

// waiting puts a message into the inbox as it is received.
func waiting(t *testing.T, db *postgres.DB, id, metadata string) {
	t.Helper()
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
		values ('r', $1, $1, 't', '', $2, '')`, id, metadata)
}

func write(t *testing.T, db *postgres.DB, sql string, args ...any) {
	t.Helper()
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	if err := db.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

func runProcessor(t *testing.T, db *postgres.DB, handle inbox.Handler, change ...func(*inbox.Policy)) {
	t.Helper()
	p := &inbox.Processor{
		DB: db, Receiver: "r", Holder: "test", Handle: handle, Concurrency: 8,
		Policy: inbox.Policy{
			Lease: time.Second, MaxAttempts: 3, GiveUpAfter: time.Hour,
			BackoffBase: time.Millisecond, BackoffCap: 10 * time.Millisecond,
		},
		Poll: 5 * time.Millisecond, Drain: time.Second, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&p.Policy)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { p.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
}

// await waits until a query of one boolean answers true.
func await(t *testing.T, db *postgres.DB, sql string) {
	t.Helper()
	awaitWithin(t, patience, db, sql)
}

func awaitWithin(t *testing.T, patience time.Duration, db *postgres.DB, sql string) {
	t.Helper()
	deadline, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var ok bool
		if err := db.QueryRow(deadline, sql).Scan(&ok); err != nil {
			t.Fatalf("never true: %s: %v", sql, err)
		}
		if ok {
			return
		}
		<-tick.C
	}
}
