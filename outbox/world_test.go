package outbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/await"
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

// reader is a subscriber of a group and what it is sent, page by page.
type reader struct {
	pages <-chan *message.Message
	open  *opened
	polls *overheard
	stop  func()
}

// opened is the page that is read.
type opened struct {
	page *message.Message
	left []*message.Message // those of its messages that were not taken
}

// read subscribes a group through connections of its own, whose polls are counted.
func read(t *testing.T, db *postgres.DB, group string) reader {
	t.Helper()
	return readWhen(t, db, group, outbox.Options{})
}

// readWhen is read with options.
func readWhen(t *testing.T, db *postgres.DB, group string, o outbox.Options) reader {
	t.Helper()
	polls := &overheard{}
	config := db.Pool().Config()
	config.ConnConfig.Tracer = polls
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	testdb.Must(t, err)
	subscriber := outbox.NewSubscriber(pool, group, o)
	pages, err := subscriber.Subscribe(t.Context(), topic)
	testdb.Must(t, err)
	stop := func() {
		if err := subscriber.Close(); err != nil {
			t.Error(err)
		}
		pool.Close()
	}
	t.Cleanup(stop)
	return reader{pages: pages, open: &opened{}, polls: polls, stop: stop}
}

// nextPage is the next page, which is not acknowledged yet.
func (r reader) nextPage(t *testing.T) *message.Message {
	t.Helper()
	page := await.Receive(t, "a page", r.pages)
	if page == nil {
		t.Fatal("the subscriber has ended")
	}
	return page
}

// next is the next message. Its page is acknowledged once ack was called as often
// as there are messages in it.
func (r reader) next(t *testing.T) *message.Message {
	t.Helper()
	if len(r.open.left) == 0 {
		r.open.page = r.nextPage(t)
		r.open.left = messages(t, r.open.page)
	}
	return r.open.left[0]
}

func (r reader) ack() {
	if r.open.left = r.open.left[1:]; len(r.open.left) == 0 {
		r.open.page.Ack()
	}
}

// take acknowledges so many messages and returns their ids.
func (r reader) take(t *testing.T, n int) []string {
	t.Helper()
	var ids []string
	for range n {
		ids = append(ids, r.next(t).UUID)
		r.ack()
	}
	return ids
}

// messages are those of a page.
func messages(t *testing.T, page *message.Message) []*message.Message {
	t.Helper()
	all, err := outbox.Messages(page)
	testdb.Must(t, err)
	if len(all) == 0 {
		t.Fatal("a page came that holds nothing")
	}
	return all
}

// named are the ids of messages.
func named(messages []*message.Message) []string {
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.UUID
	}
	return ids
}

func (r reader) wantNext(t *testing.T, want ...string) {
	t.Helper()
	testrun.Same(t, "messages", want, r.take(t, len(want)))
}

// wantNone wants no page from several polls. A subscriber that has read a page does not
// poll until it is taken.
func (r reader) wantNone(t *testing.T) {
	t.Helper()
	if len(r.open.left) > 0 {
		t.Fatalf("message %s came", r.open.left[0].UUID)
	}
	before := r.polls.count()
	await.True(t, "the subscriber has polled", func() bool {
		r.wantNoneNow(t)
		return r.polls.count() >= before+3
	})
}

// wantNoneNow wants no page to lie ready.
func (r reader) wantNoneNow(t *testing.T) {
	t.Helper()
	select {
	case m := <-r.pages:
		t.Fatalf("message %s came", m.UUID)
	default:
	}
}

// settled waits until one page may hold all that was published: a page ends at the
// oldest transaction in progress, and that may be of another test's database.
func settled(t *testing.T, db *postgres.DB) {
	t.Helper()
	await.Row(t, db, `select max(transaction_id) < pg_snapshot_xmin(pg_current_snapshot()) from outbox`)
}

func numbered(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("m%04d", i+1)
	}
	return ids
}

// write commits a statement.
func write(t *testing.T, db *postgres.DB, sql string, args ...any) {
	t.Helper()
	testdb.Exec(t, db.Pool(), sql, args...)
}

// fresh returns an empty database for a subtest, which runs beside others.
func fresh(t *testing.T) *postgres.DB {
	t.Helper()
	t.Parallel()
	return testdb.Open(t)
}

// post commits a message.
func post(t *testing.T, db *postgres.DB, m outbox.Message) {
	t.Helper()
	b := &pgx.Batch{}
	testdb.Must(t, outbox.Append(b, m))
	testdb.Must(t, db.Commit(t.Context(), b))
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
