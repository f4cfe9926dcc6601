package outbox_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

func TestOrder(t *testing.T) {
	t.Parallel()

	t.Run("an older transaction that commits late is not passed over", func(t *testing.T) {
		db := fresh(t)
		publish(t, db, "first")
		late := testdb.Begin(t, db.Pool(), `select pg_current_xact_id()`)
		publish(t, db, "young")
		testdb.Must(t, late.SendBatch(t.Context(), letters(t, "old")).Close())
		r := read(t, db, "g")
		r.wantNext(t, "first")
		r.wantNone(t)
		testdb.Must(t, late.Commit(t.Context()))
		r.wantNext(t, "old", "young")
	})

	t.Run("many writers at once lose nothing and mix nothing up", func(t *testing.T) {
		db := fresh(t)
		const writers, commits = 8, 40
		r := read(t, db, "g")
		var work errgroup.Group
		for w := range writers {
			work.Go(func() error {
				for c := range commits {
					b := letters(t, fmt.Sprintf("%d-%d-a", w, c), fmt.Sprintf("%d-%d-b", w, c))
					if err := db.Commit(t.Context(), b); err != nil {
						return err
					}
				}
				return nil
			})
		}
		got := r.take(t, writers*commits*2)
		testdb.Must(t, work.Wait())
		want := testdb.One[[]string](t, db, `select array_agg(message_id order by transaction_id, "offset") from outbox`)
		testrun.Same(t, "messages", want, got)
	})
}

func TestGroups(t *testing.T) {
	t.Parallel()

	t.Run("each group reads every message", func(t *testing.T) {
		db := fresh(t)
		publish(t, db, numbered(250)...) // more than two pages
		for _, group := range []string{"a", "b"} {
			read(t, db, group).wantNext(t, numbered(250)...)
		}
	})

	t.Run("a topic shows nothing of another", func(t *testing.T) {
		db := fresh(t)
		post(t, db, outbox.Message{Topic: "parcels", ID: "p1", Payload: []byte("p1")})
		publish(t, db, "m1")
		r := read(t, db, "g")
		r.wantNext(t, "m1")
		r.wantNone(t)
	})
}

// A standby waits for the active one, and takes over when its session dies.
func TestSubscriber_waitsWhileAnotherOneOfItsGroupReads(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	publish(t, db, "m1", "m2")
	log := &await.Log{}
	active := readWhen(t, db, "g", outbox.Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	held := active.nextPage(t)
	standby := read(t, db, "g")
	await.Blocked(t, db, 1)
	standby.wantNoneNow(t)
	const end = `
select count(pg_terminate_backend(pid))
  from pg_stat_activity
 where datname = current_database()
   and state = 'idle in transaction'`
	var ended int
	if err := db.QueryRow(t.Context(), end).Scan(&ended); err != nil || ended != 1 {
		t.Fatalf("%d sessions ended: %v", ended, err)
	}
	standby.wantNext(t, "m1", "m2")
	held.Ack() // too late, and harmless
	await.True(t, "the loss is logged, with its keys once", func() bool {
		line, _, _ := strings.Cut(log.String(), "\n")
		return strings.Contains(line, "level=ERROR") && strings.Count(line, "topic=") == 1 && strings.Count(line, "consumer_group=") == 1
	})
	active.stop()
	publish(t, db, "m3")
	standby.wantNext(t, "m3")
}

// The page's transaction is open while the page is received, so a subscriber must not hold
// the connection that the receiver waits for.
func TestSubscriber_leavesThePoolToTheReceiver(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(testdb.URL(t))
	testdb.Must(t, err)
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	testdb.Must(t, err)
	defer pool.Close()
	subscriber := outbox.NewSubscriber(pool, "g", outbox.Options{})
	pages, err := subscriber.Subscribe(t.Context(), topic)
	testdb.Must(t, err)
	testdb.Must(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return outbox.Send(t.Context(), tx, outbox.Message{Topic: topic, ID: "m1"})
	}))
	page := await.Receive(t, "the page is read", pages)
	_, err = pool.Exec(t.Context(), `select 1`)
	testdb.Must(t, err)
	page.Ack()
	testdb.Must(t, subscriber.Close())
}
