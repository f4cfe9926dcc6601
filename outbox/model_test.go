package outbox_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

// TestModel lets writers commit, roll back and leave transactions open, while two processes, for which
// nothing rings, read their messages, refuse them, do not answer, are cut off and die, and a failover
// loses the row of their topic. It holds that
//
//   - what is delivered was committed, in the topic to which it was sent;
//   - a writer's messages are first delivered in the order of its transactions;
//   - each committed message is acknowledged, and only that deletes it.
func TestModel(t *testing.T) {
	testrun.Long(t, "it waits for deadlines")
	t.Parallel()
	url := testdb.URL(t)
	db := testdb.Connect(t, url)
	if given := flag.Lookup("rapid.checks"); given.Value.String() == given.DefValue {
		testdb.Must(t, flag.Set("rapid.checks", "8"))
	}
	sequence := 0
	rapid.Check(t, func(r *rapid.T) {
		sequence++
		m := &model{
			t: t, r: r, url: url, db: db, topic: fmt.Sprint("t", sequence),
			committed: map[string]bool{}, acked: map[string]bool{}, answers: map[string]string{},
		}
		m.both[0], m.both[1] = m.born(), m.born()
		r.Repeat(m.actions())
		m.settle()
	})
}

type model struct {
	t     *testing.T
	r     *rapid.T
	url   string
	db    *postgres.DB
	topic string
	both  [2]*process
	next  [3]int    // message of each writer
	open  [3]pgx.Tx // and its transaction
	in    [3][]string

	mu        sync.Mutex
	committed map[string]bool // or about to be
	acked     map[string]bool
	answers   map[string]string // to the first delivery of a message
	delivered []string          // first deliveries
	broken    string
}

// process is a subscriber in a process of its own.
type process struct {
	cutter *failpoint.Cutter
	end    func()
}

func (m *model) born() *process {
	cutter := failpoint.StartCutter(m.t, m.url)
	pool, err := pgxpool.New(m.t.Context(), cutter.URL())
	testdb.Must(m.t, err)
	subscriber := outbox.NewSubscriber(pool, outbox.Options{Bell: make(chan struct{}), Log: slog.New(slog.DiscardHandler)})
	outbox.SetTimes(subscriber, 5*time.Millisecond, 200*time.Millisecond)
	messages, err := subscriber.Subscribe(m.t.Context(), m.topic)
	testdb.Must(m.t, err)
	var receiving sync.WaitGroup
	receiving.Go(func() {
		for message := range messages {
			m.receive(message)
		}
	})
	p := &process{cutter, sync.OnceFunc(func() {
		cutter.Close()
		_ = subscriber.Close() // its connections are lost
		receiving.Wait()
		pool.Close()
	})}
	m.t.Cleanup(p.end)
	return p
}

func (m *model) receive(got *message.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var w, n int
	if _, err := fmt.Sscanf(got.UUID, m.topic+"-%d-%d", &w, &n); err != nil || !m.committed[got.UUID] || string(got.Payload) != got.UUID {
		m.broken = fmt.Sprintf("%s came, with %q", got.UUID, got.Payload)
	}
	if !slices.Contains(m.delivered, got.UUID) {
		for before := range n {
			if id := m.id(w, before); m.committed[id] && !slices.Contains(m.delivered, id) {
				m.broken = fmt.Sprintf("%s came before %s", got.UUID, id)
			}
		}
		m.delivered = append(m.delivered, got.UUID)
	}
	answer := m.answers[got.UUID]
	delete(m.answers, got.UUID)
	switch answer {
	case "refuse":
		got.Nack()
	case "nothing":
	default:
		m.acked[got.UUID] = got.Ack() || m.acked[got.UUID]
	}
}

func (m *model) id(w, n int) string { return fmt.Sprintf("%s-%d-%d", m.topic, w, n) }

func (m *model) actions() map[string]func(*rapid.T) {
	of := func(r *rapid.T) int { return rapid.IntRange(0, 2).Draw(r, "writer") }
	return map[string]func(*rapid.T){
		"write":     func(r *rapid.T) { m.write(r, of(r)) },
		"commit":    func(r *rapid.T) { m.end(of(r), true) },
		"roll back": func(r *rapid.T) { m.end(of(r), false) },
		"lose": func(*rapid.T) {
			testdb.Exec(m.t, m.db.Pool(), `delete from outbox_topics where topic = $1`, m.topic)
		},
		"cut": func(r *rapid.T) { m.both[rapid.IntRange(0, 1).Draw(r, "process")].cutter.CutAll() },
		"kill": func(r *rapid.T) {
			i := rapid.IntRange(0, 1).Draw(r, "process")
			m.both[i].end()
			m.both[i] = m.born()
		},
		"": func(r *rapid.T) {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.broken != "" {
				r.Fatal(m.broken)
			}
		},
	}
}

// write sends messages in the writer's open transaction, or in a new one.
func (m *model) write(r *rapid.T, w int) {
	tx := m.open[w]
	if tx == nil {
		tx = testdb.Begin(m.t, m.db.Pool(), `select`)
		m.open[w], m.in[w] = tx, nil
	}
	for range rapid.IntRange(1, 5).Draw(r, "messages") {
		id := m.id(w, m.next[w])
		m.next[w]++
		m.in[w] = append(m.in[w], id)
		m.mu.Lock()
		m.answers[id] = rapid.SampledFrom([]string{"accept", "accept", "accept", "refuse", "nothing"}).Draw(r, "answer")
		m.mu.Unlock()
		testdb.Must(m.t, outbox.Send(m.t.Context(), tx,
			outbox.Message{Topic: m.topic, ID: id, Payload: []byte(id)}, outbox.Message{Topic: m.topic + " of another", ID: id}))
	}
}

// end ends the transaction of a writer, if it has one.
func (m *model) end(w int, commits bool) {
	tx := m.open[w]
	if m.open[w] = nil; tx == nil {
		return
	}
	if !commits {
		testdb.Must(m.t, tx.Rollback(m.t.Context()))
		return
	}
	m.mu.Lock()
	for _, id := range m.in[w] {
		m.committed[id] = true
	}
	m.mu.Unlock()
	testdb.Must(m.t, tx.Commit(m.t.Context()))
}

// settle lets everything be delivered, and compares what was acknowledged with what was committed.
func (m *model) settle() {
	for w := range m.open {
		m.end(w, true)
	}
	testrun.Row(m.t, m.db, `select not exists (select from outbox where topic = $1)`, m.topic)
	for _, p := range m.both {
		p.end()
	}
	for id := range m.committed {
		if !m.acked[id] {
			m.broken = id + " was deleted, and not acknowledged"
		}
	}
	if m.broken != "" {
		m.r.Fatal(m.broken)
	}
}

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
