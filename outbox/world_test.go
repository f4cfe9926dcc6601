package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

func TestMain(m *testing.M) { testrun.Main(m) }

const topic = "letters"

// publish commits one message per id, all in one commit.
func publish(t *testing.T, db *postgres.DB, ids ...string) {
	t.Helper()
	testdb.Must(t, db.Commit(t.Context(), letters(t, ids...)))
}

func letters(t *testing.T, ids ...string) *pgx.Batch {
	t.Helper()
	b := &pgx.Batch{}
	for _, id := range ids {
		testdb.Must(t, outbox.Append(b, outbox.Message{Topic: topic, ID: id, Type: "letter", OrderingKey: "k", Payload: []byte(id)}))
	}
	return b
}

func numbered(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("m%04d", i+1)
	}
	return ids
}

// reader is a subscriber and what it delivers.
type reader struct {
	messages <-chan *message.Message
	pool     *pgxpool.Pool
	cancel   func() // of the context
	stop     func()
}

// options change how a reader is made.
type options struct {
	outbox.Options

	poll   time.Duration
	config func(*pgxpool.Config)
}

// read subscribes through connections of its own, whose application_name is reader.
func read(t *testing.T, like *pgxpool.Pool, o options) reader {
	t.Helper()
	config := like.Config()
	config.ConnConfig.RuntimeParams["application_name"] = "reader"
	if o.config != nil {
		o.config(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	testdb.Must(t, err)
	subscriber := outbox.NewSubscriber(pool, o.Options)
	outbox.SetTimes(subscriber, o.poll, 0)
	ctx, cancel := context.WithCancel(t.Context())
	messages, err := subscriber.Subscribe(ctx, topic)
	testdb.Must(t, err)
	stop := sync.OnceFunc(func() {
		if err := subscriber.Close(); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	t.Cleanup(stop)
	return reader{messages, pool, cancel, stop}
}

// next returns messages that are not acknowledged yet.
func (r reader) next(t *testing.T, n int) []*message.Message {
	t.Helper()
	all := make([]*message.Message, n)
	for i := range all {
		if all[i] = testrun.Receive(t, fmt.Sprintf("message %d of %d", i+1, n), r.messages); all[i] == nil {
			t.Fatal("the subscriber has ended")
		}
	}
	return all
}

// take acknowledges messages and returns their ids.
func (r reader) take(t *testing.T, n int) []string {
	t.Helper()
	ids := make([]string, n)
	for i := range ids {
		m := r.next(t, 1)[0]
		ids[i] = m.UUID
		m.Ack()
	}
	return ids
}

func (r reader) wantNext(t *testing.T, want ...string) {
	t.Helper()
	testrun.Same(t, "messages", want, r.take(t, len(want)))
}

// wantNoneNow wants no message to lie ready.
func (r reader) wantNoneNow(t *testing.T) {
	t.Helper()
	select {
	case m := <-r.messages:
		t.Fatalf("message %s came", m.UUID)
	default:
	}
}

func ids(messages []*message.Message) []string {
	all := make([]string, len(messages))
	for i, m := range messages {
		all[i] = m.UUID
	}
	return all
}

// wantEmpty waits until every message was deleted.
func wantEmpty(t *testing.T, db *postgres.DB) {
	t.Helper()
	testrun.Row(t, db, `select not exists (select from outbox)`)
}

// openPool is a pool for an example. In the schema of its search_path are the tables of
// outbox.Schema and one of orders, and no other.
func openPool() (pool *pgxpool.Pool, end func()) {
	ctx := context.Background()
	db, drop := testdb.Example()
	config := db.Pool().Config()
	config.ConnConfig.RuntimeParams["search_path"] = "shop"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err == nil {
		_, err = pool.Exec(ctx, `create schema shop; create table orders (id text primary key);`+outbox.Schema(), pgx.QueryExecModeSimpleProtocol)
	}
	if err != nil {
		panic(err)
	}
	return pool, func() { pool.Close(); drop() }
}
