package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

// broker is a publisher that keeps what it is sent.
type broker struct {
	before func(m *message.Message) error // of each message

	mu     sync.Mutex
	stored []string
}

func (b *broker) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		if b.before != nil {
			if err := b.before(m); err != nil {
				return err
			}
		}
		b.mu.Lock()
		b.stored = append(b.stored, m.UUID)
		b.mu.Unlock()
	}
	return nil
}

func (*broker) Close() error { return nil }

// firsts are the first copies, in the order in which they came, and how many copies came.
func (b *broker) firsts() (ids []string, copies int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range b.stored {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, len(b.stored)
}

// await waits until the broker has the first copies of numbered messages, in their order, and
// returns how many copies came.
func (b *broker) await(t *testing.T, n int) (copies int) {
	t.Helper()
	want := numbered(n)
	await.Progress(t, fmt.Sprintf("%d messages come", n), func() (string, bool) {
		got, all := b.firsts()
		copies = all
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			t.Fatalf("messages (-want +got):\n%s", cmp.Diff(want, got))
		}
		return fmt.Sprintf("%d came", len(got)), len(got) == n
	})
	return copies
}

// forward runs a forwarder of the group g until stop, or until the test ends.
func forward(t *testing.T, pool *pgxpool.Pool, to message.Publisher, o outbox.Options) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- outbox.Forward(ctx, pool, "g", topic, to, o) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := await.Receive(t, "the forwarder's end", ended); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// awaitForwarded waits until the group has passed all messages.
func awaitForwarded(t *testing.T, db *postgres.DB) {
	t.Helper()
	await.Row(t, db, `
select (o.transaction_id, o."offset") = (select transaction_id, "offset" from outbox order by transaction_id desc, "offset" desc limit 1)
  from outbox_offsets o
 where consumer_group = 'g'`)
}

func TestForward(t *testing.T) {
	t.Parallel()

	t.Run("messages go to the broker in order, under their id and with their metadata", func(t *testing.T) {
		db := fresh(t)
		publish(t, db, numbered(mostMessages+1)...)
		var mu sync.Mutex
		var metadata message.Metadata
		to := &broker{before: func(m *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			metadata = m.Metadata
			return m.Context().Err()
		}}
		forward(t, db.Pool(), to, outbox.Options{})
		if copies := to.await(t, mostMessages+1); copies != mostMessages+1 {
			t.Errorf("%d copies", copies)
		}
		awaitForwarded(t, db)
		mu.Lock()
		defer mu.Unlock()
		testrun.Same(t, "metadata", message.Metadata{"type": "letter", "ordering_key": "k"}, metadata)
	})

	t.Run("a publisher that stalls holds up its own group alone, and no transaction is open", func(t *testing.T) {
		db := fresh(t)
		publish(t, db, "m0001")
		stalled := make(chan struct{})
		to := &broker{before: func(m *message.Message) error {
			if m.UUID == "m0001" {
				close(stalled)
				<-m.Context().Done()
			}
			return m.Context().Err()
		}}
		stop := forward(t, db.Pool(), to, outbox.Options{})
		await.Receive(t, "the stall", stalled)
		await.Row(t, db, `select not exists (select from pg_stat_activity where datname = current_database() and state like 'idle in transaction%')`)
		publish(t, db, "m0002")
		read(t, db, "another").wantNext(t, "m0001", "m0002")
		stop()
		after := &broker{}
		forward(t, db.Pool(), after, outbox.Options{})
		after.await(t, 2)
	})

	t.Run("an error or a panic of the publisher is logged once, and its page is published again", func(t *testing.T) {
		for name, fail := range map[string]func() error{
			"publish 10 messages: planted":        func() error { return errors.New("planted") },
			"publish 10 messages: panic: planted": func() error { panic("planted") },
		} {
			db := testdb.Open(t)
			publish(t, db, numbered(10)...)
			failures, log := 0, &await.Log{}
			to := &broker{before: func(m *message.Message) error {
				if m.UUID == "m0001" && failures < 5 {
					failures++
					return fail()
				}
				return nil
			}}
			stop := forward(t, db.Pool(), to, outbox.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
			to.await(t, 10)
			awaitForwarded(t, db)
			stop()
			if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), name) || !strings.Contains(log.String(), "works again") {
				t.Errorf("%s: %d errors are logged:\n%s", name, n, log)
			}
		}
	})

	t.Run("one of several forwarders publishes, and when it ends another", func(t *testing.T) {
		db := fresh(t)
		first, second := &broker{}, &broker{}
		publish(t, db, numbered(3)...)
		stop := forward(t, db.Pool(), first, outbox.Options{})
		first.await(t, 3)
		forward(t, db.Pool(), second, outbox.Options{})
		for _, id := range numbered(50)[3:] {
			publish(t, db, id)
		}
		first.await(t, 50)
		awaitForwarded(t, db)
		stop()
		publish(t, db, "m0051")
		await.True(t, "the second goes on", func() bool { ids, _ := second.firsts(); return slices.Equal(ids, []string{"m0051"}) })
	})
}

// at is a broker that calls do once, before it stores a message.
func at(id string, do func(ctx context.Context)) *broker {
	var once sync.Once
	return &broker{before: func(m *message.Message) error {
		if m.UUID == id {
			once.Do(func() { do(m.Context()) })
		}
		return nil
	}}
}

// endLockHolder ends the session of the forwarder that publishes.
func endLockHolder(t *testing.T, db *postgres.DB) {
	t.Helper()
	ended := testdb.One[int](t, db, `
select count(pg_terminate_backend(pid, 10000))
  from pg_locks
 where locktype = 'advisory'
   and granted
   and database = (select oid from pg_database where datname = current_database())`)
	if ended != 1 {
		t.Errorf("%d sessions ended", ended)
	}
}

func TestForward_faults(t *testing.T) {
	t.Parallel()

	t.Run("a forwarder that dies before the offset moves costs a repetition", func(t *testing.T) {
		db := fresh(t)
		publish(t, db, numbered(3)...)
		ctx, die := context.WithCancel(t.Context())
		died := at("m0003", func(context.Context) {
			endLockHolder(t, db)
			die()
		})
		testdb.Must(t, outbox.Forward(ctx, db.Pool(), "g", topic, died, outbox.Options{}))
		if ids, _ := died.firsts(); !slices.Equal(ids, numbered(3)) {
			t.Fatalf("published are %v", ids)
		}
		publish(t, db, "m0004")
		heir := &broker{}
		forward(t, db.Pool(), heir, outbox.Options{})
		awaitForwarded(t, db)
		if ids, copies := heir.firsts(); !slices.Equal(ids, numbered(4)) || copies != 4 {
			t.Errorf("its successor publishes %v, %d copies", ids, copies)
		}
	})

	t.Run("a context that ends while a page is published does not undo it", func(t *testing.T) {
		db := fresh(t)
		publish(t, db, numbered(3)...)
		ctx, end := context.WithCancel(t.Context())
		testdb.Must(t, outbox.Forward(ctx, db.Pool(), "g", topic, at("m0002", func(context.Context) { end() }), outbox.Options{}))
		awaitForwarded(t, db)
		await.Row(t, db, `select not exists (select from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database()))`)
	})

	t.Run("a forwarder that has lost its lock moves the offset of its successor nowhere", func(t *testing.T) {
		db := fresh(t)
		publish(t, db, numbered(2)...)
		stalled, goOn := make(chan struct{}), make(chan struct{})
		slow := at("m0002", func(context.Context) {
			close(stalled)
			<-goOn
		})
		log := &await.Log{}
		forward(t, db.Pool(), slow, outbox.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
		await.Receive(t, "the stall", stalled)
		endLockHolder(t, db)
		publish(t, db, numbered(5)[2:]...)
		successor := &broker{}
		stop := forward(t, db.Pool(), successor, outbox.Options{})
		successor.await(t, 5)
		awaitForwarded(t, db)
		close(goOn)
		await.True(t, "the first reports that it lost its session", func() bool { return strings.Contains(log.String(), "level=ERROR") })
		awaitForwarded(t, db)
		stop()
		publish(t, db, "m0006")
		await.True(t, "and publishes what comes next", func() bool {
			ids, _ := slow.firsts()
			return slices.Equal(ids, []string{"m0001", "m0002", "m0006"})
		})
	})

	t.Run("an offset that is moved back while a page is published stays where it is", func(t *testing.T) {
		db := fresh(t)
		publish(t, db, numbered(2)...)
		to := at("m0004", func(context.Context) {
			write(t, db, `update outbox_offsets set transaction_id = '0', "offset" = 0`)
		})
		forward(t, db.Pool(), to, outbox.Options{})
		to.await(t, 2)
		awaitForwarded(t, db)
		publish(t, db, numbered(4)[2:]...)
		to.await(t, 4)
		awaitForwarded(t, db)
		if _, copies := to.firsts(); copies < 8 {
			t.Errorf("%d copies, want each message published again", copies)
		}
	})

	t.Run("a connection that is cut at the commit of the offset loses nothing", func(t *testing.T) {
		for _, side := range []failpoint.Side{failpoint.Before, failpoint.After} {
			database := testdb.URL(t)
			db := testdb.Connect(t, database)
			cutter := failpoint.StartCutter(t, database)
			pool, err := pgxpool.New(t.Context(), cutter.URL())
			testdb.Must(t, err)
			publish(t, db, numbered(3)...)
			to := at("m0003", func(context.Context) { cutter.Arm(side, 1) })
			stop := forward(t, pool, to, outbox.Options{})
			await.True(t, "the connection is cut", func() bool { return cutter.Cuts() == 1 })
			publish(t, db, "m0004")
			to.await(t, 4)
			awaitForwarded(t, db)
			stop()
			pool.Close()
		}
	})

	t.Run("tables that are not there are an error", func(t *testing.T) {
		db := fresh(t)
		config := db.Pool().Config()
		config.ConnConfig.RuntimeParams["search_path"] = "elsewhere"
		elsewhere, err := pgxpool.NewWithConfig(t.Context(), config)
		testdb.Must(t, err)
		defer elsewhere.Close()
		for _, test := range []struct {
			what, want string
			pool       *pgxpool.Pool
		}{
			{"no pool", "the pool is nil", nil},
			{"another search_path", `relation "outbox_offsets" does not exist`, elsewhere},
		} {
			subscriber := outbox.NewSubscriber(test.pool, "g", outbox.Options{})
			_, subscribed := subscriber.Subscribe(t.Context(), topic)
			for of, err := range map[string]error{
				"subscribe to " + topic: subscribed, "forward " + topic: outbox.Forward(t.Context(), test.pool, "g", topic, &broker{}, outbox.Options{}),
			} {
				if err == nil || !strings.HasPrefix(err.Error(), of+": ") || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%s: %s says %v", test.what, of, err)
				}
			}
			testdb.Must(t, subscriber.Close())
		}
		if err := outbox.Forward(t.Context(), db.Pool(), "g", topic, nil, outbox.Options{}); err == nil || err.Error() != "forward letters: the publisher is nil" {
			t.Errorf("without a publisher: %v", err)
		}
		err = pgx.BeginFunc(t.Context(), elsewhere, func(tx pgx.Tx) error {
			return outbox.Send(t.Context(), tx, outbox.Message{Topic: topic, ID: "m1"})
		})
		if err == nil || !strings.Contains(err.Error(), `relation "outbox" does not exist`) {
			t.Errorf("Send says %v", err)
		}
	})
}
