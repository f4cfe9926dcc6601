package inbox_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/inbox/deadletter"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestModel drives two processors on one database, in any modes of pgx, by any sequence of deliveries, ends,
// retries, discards, pauses, deletions, lost claims, cut connections and kills. Meanwhile and after each
// sequence it holds that
//
//   - a key with pending messages has a first message, but for two seconds;
//   - no two messages of a key run together, but for one that was taken over, and no more handlers than slots;
//   - a message is done or discarded as often as it was stored, and has one effect if it is done;
//   - each message that was delivered was stored, and arrives as it was sent.
//
// Its long form:
//
//	go test ./inbox -run TestModel -rapid.checks=200 -rapid.steps=100 -timeout 2h -v
func TestModel(t *testing.T) {
	testrun.Long(t, "it takes a large part of the time")
	t.Parallel()
	bounds := map[string]string{"rapid.checks": "8", "rapid.steps": "60"}
	flag.Visit(func(given *flag.Flag) { delete(bounds, given.Name) })
	for name, value := range bounds {
		testdb.Must(t, flag.Set(name, value)) // as if they were given: rapid has no other way
	}
	url := testdb.URL(t)
	write(t, testdb.Connect(t, url), witnesses)
	sequence := 0
	rapid.Check(t, func(r *rapid.T) {
		sequence++
		m := newModel(t, r, url, fmt.Sprint("r", sequence))
		defer m.end()
		r.Repeat(m.actions())
		m.settle()
	})
}

// witnesses note what happens to each message, where no statement of the inbox can forget it.
const witnesses = `
create table effects (receiver text, message_id text);
create table happened (receiver text, message_id text, what text);
create function witness() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    insert into happened values (new.receiver, new.message_id, 'stored');
  elsif new.status <> old.status and new.status in ('done', 'discarded') then
    insert into happened values (new.receiver, new.message_id, new.status);
  elsif new.deaths > old.deaths then
    insert into happened values (new.receiver, new.message_id, 'taken over');
  end if;
  return null;
end $$;
create trigger witness after insert or update on inbox for each row execute function witness()`

// database is a pool in some mode of pgx, and the shared commits on it.
type database struct {
	pool *pgxpool.Pool
	db   groupcommit.DB
}

func open(t *testing.T, r *rapid.T, url string) database {
	t.Helper()
	pool := testdb.PoolIn(t, url, rapid.SampledFrom(testdb.Modes()).Draw(r, "mode"))
	return database{pool, groupcommit.New(pool, groupcommit.Options{Writes: groupcommit.NewStatements(inbox.Writes()...)})}
}

type model struct {
	t   *testing.T
	r   *rapid.T
	url string
	database
	receiver string
	policy   inbox.DeadLetters
	stop     context.CancelFunc
	watching sync.WaitGroup
	both     [2]*life

	mu      sync.Mutex
	sent    []string
	scripts map[string][]string // what the handler does with a message, attempt by attempt
	running map[string]map[*inbox.Delivery]bool
	zombies map[*inbox.Delivery]bool
	kills   int
	broken  string // the first violation
}

// life is one start of a processor.
type life struct {
	*inbox.Processor

	cutter   *failpoint.Cutter
	cancel   context.CancelFunc
	ended    chan struct{}
	handlers atomic.Int32
}

func newModel(t *testing.T, r *rapid.T, url, receiver string) *model {
	t.Helper()
	m := &model{
		t: t, r: r, url: url, database: open(t, r, url), receiver: receiver, policy: rapid.SampledFrom([]inbox.DeadLetters{inbox.Block, inbox.Pass}).Draw(r, "policy"),
		scripts: map[string][]string{}, running: map[string]map[*inbox.Delivery]bool{}, zombies: map[*inbox.Delivery]bool{},
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	m.stop = cancel
	m.watching.Go(func() { m.watch(ctx) })
	for i := range m.both {
		m.both[i] = m.born(r)
	}
	return m
}

func (m *model) born(r *rapid.T) *life {
	cutter := failpoint.StartCutter(m.t, m.url)
	ctx, cancel := context.WithCancel(context.WithoutCancel(m.t.Context()))
	own := open(m.t, r, cutter.URL())
	l := &life{cutter: cutter, cancel: cancel, ended: make(chan struct{})}
	l.Processor = processor(m.t, own.db, func(ctx context.Context, d *inbox.Delivery) error {
		defer l.handlers.Add(-1)
		if l.handlers.Add(1) > 3 {
			m.fail("there are more handlers than slots")
		}
		return m.handle(ctx, own, d)
	}, func(o *inbox.Options) {
		o.Receiver, o.Concurrency, o.Drain = m.receiver, 3, time.Nanosecond
		o.Policy = inbox.Policy{
			Lease: time.Second, MaxAttempts: 4, GiveUpAfter: 3 * time.Second, DeadLetters: m.policy,
			BackoffBase: 5 * time.Millisecond, BackoffCap: 50 * time.Millisecond,
		}
	})
	go func() { defer close(l.ended); _ = l.Run(ctx) }()
	return l
}

// die is a death: all connections break at once, and no end is stored but by what its handlers
// still commit by another way.
func (l *life) die() {
	l.cutter.Close()
	l.cancel()
}

func (m *model) fail(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken == "" {
		m.broken = fmt.Sprintf(format, args...)
	}
}

// watch looks for keys without a first message. A slow look counts as a fast one: repairs are slow then, too.
func (m *model) watch(ctx context.Context) {
	without := map[string]time.Duration{}
	for last := time.Now(); ctx.Err() == nil; time.Sleep(20 * time.Millisecond) { //nolint:forbidigo // it polls
		rows, _ := m.db.Query(ctx, `
select distinct ordering_key from inbox b
 where receiver = $1 and status = 'pending' and not first
   and not exists (select from inbox f where f.receiver = b.receiver and f.ordering_key = b.ordering_key and f.first)`, m.receiver)
		keys, err := pgx.CollectRows(rows, pgx.RowTo[string]) // which has the error of the query too
		if err != nil {
			continue
		}
		now, seen := time.Now(), map[string]time.Duration{}
		for _, key := range keys {
			if seen[key] = without[key] + min(now.Sub(last), 25*time.Millisecond); seen[key] > 2*time.Second {
				m.fail("the key %s had no first message for %v", key, seen[key])
			}
		}
		without, last = seen, now
	}
}

// begin notes that a handler runs, and returns the step of its script and what ends the note.
func (m *model) begin(d *inbox.Delivery) (step string, end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running[d.OrderingKey] == nil {
		m.running[d.OrderingKey] = map[*inbox.Delivery]bool{}
	}
	for other := range m.running[d.OrderingKey] {
		m.zombies[other] = true
	}
	m.running[d.OrderingKey][d] = true
	step = "done"
	if script := m.scripts[d.ID]; len(script) > 0 {
		step, m.scripts[d.ID] = script[0], script[1:]
	}
	return step, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.running[d.OrderingKey], d)
	}
}

var steps = []string{"done", "commit and fail", "error", "panic", "goexit", "wait", "wait for the next", "dead", "slow", "rolled back"}

func (m *model) handle(ctx context.Context, own database, d *inbox.Delivery) error {
	step, end := m.begin(d)
	defer end()
	if string(d.Payload) != d.ID+noText || d.Metadata["k"] != odd {
		m.fail("%s came with %q, %q", d.ID, d.Payload, d.Metadata)
	}
	switch step {
	case "error":
		return errors.New("odd")
	case "panic":
		panic("odd")
	case "goexit":
		runtime.Goexit()
	case "wait":
		return &inbox.WaitError{AtLeast: 20 * time.Millisecond, Err: errClosed}
	case "wait for the next":
		return &inbox.WaitError{AtLeast: time.Second, NoDeadline: true, Err: errClosed}
	case "dead":
		return &inbox.DeadLetterError{Err: errors.New("never")}
	case "slow":
		select {
		case <-ctx.Done():
		case <-time.After(1500 * time.Millisecond):
		}
	}
	end() // the next one may start as soon as the commit is durable
	const effect = `insert into effects (receiver, message_id) values ($1, $2)`
	if step == "rolled back" {
		tx, err := own.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		if _, err := tx.Exec(ctx, effect, m.receiver, d.ID); err != nil {
			return err
		}
		return d.Done(ctx, tx) // and nil, though nothing is durable
	}
	db := m.db // so that what a dead process has sent arrives late
	if len(d.ID)%2 == 0 {
		db = own.db
	}
	b := &pgx.Batch{}
	b.Queue(effect, m.receiver, d.ID)
	err := d.Commit(ctx, db, b)
	if step == "commit and fail" {
		err = errors.Join(err, errors.New("after all"))
	}
	return err
}

func (m *model) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"page":   func(r *rapid.T) { m.page(r) },
		"append": func(r *rapid.T) { m.append(r) },
		"pause": func(r *rapid.T) {
			paused := [][]string{nil, {"p0"}, {"p1"}}[rapid.IntRange(0, 2).Draw(r, "partition")]
			m.both[rapid.IntRange(0, 1).Draw(r, "processor")].Pause(rapid.IntRange(0, 9).Draw(r, "all") == 0, paused...)
		},
		"retry":   func(*rapid.T) { m.decide(deadletter.Retry) },
		"discard": func(*rapid.T) { m.decide(deadletter.Discard) },
		"expire": func(*rapid.T) {
			if _, err := inbox.DeleteExpired(m.t.Context(), m.db, 0, 5); err != nil {
				m.fail("expire: %v", err)
			}
		},
		"steal": func(r *rapid.T) { // a holder that went silent
			_, err := m.pool.Exec(m.t.Context(), `
update inbox set holder = 'silent' where id in (select id from inbox where receiver = $1 and status = 'running' order by hashint8extended(id, $2) limit 1 for update skip locked)`,
				m.receiver, rapid.Int64().Draw(r, "of"))
			testdb.Must(m.t, err)
		},
		"cut": func(r *rapid.T) { m.both[rapid.IntRange(0, 1).Draw(r, "processor")].cutter.CutAll() },
		"kill": func(r *rapid.T) {
			i := rapid.IntRange(0, 1).Draw(r, "processor")
			if m.kills%3 == 0 { // not too often
				m.both[i].die()
				m.both[i] = m.born(r)
			}
			m.kills++
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

// odd is text for metadata, and noText a part of each payload.
const (
	odd    = "'\"\\x é \u2028"
	noText = "\x00\xff" + odd
)

// message draws one that is new, or one time in five one that was sent.
func (m *model) message(r *rapid.T) inbox.Message {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.sent)
	if n > 0 && rapid.IntRange(0, 4).Draw(r, "repeats") == 0 {
		n = rapid.IntRange(0, n-1).Draw(r, "which")
	}
	id := fmt.Sprint("m", n)
	if n == len(m.sent) {
		m.sent = append(m.sent, id)
		m.scripts[id] = rapid.SliceOfN(rapid.SampledFrom(steps), 0, 3).Draw(r, "script")
	}
	return inbox.Message{
		ID: id, OrderingKey: fmt.Sprint("naïve ", n%5), Partition: fmt.Sprint("p", n%3), Payload: []byte(id + noText), Metadata: map[string]string{"k": odd},
	}
}

func (m *model) page(r *rapid.T) {
	var page []inbox.Message
	for range rapid.IntRange(1, 6).Draw(r, "messages") {
		page = append(page, m.message(r))
	}
	to := m.both[rapid.IntRange(0, 1).Draw(r, "processor")]
	testrun.True(r, "the page is stored", func() bool { _, err := to.Receive(m.t.Context(), page...); return err == nil })
}

func (m *model) append(r *rapid.T) {
	var all sync.WaitGroup
	for range rapid.IntRange(1, 4).Draw(r, "together") {
		b := &pgx.Batch{}
		inbox.Append(b, m.receiver, m.message(r))
		all.Go(func() {
			if err := m.db.Commit(m.t.Context(), b); err != nil && groupcommit.Constraint(err) != "inbox_one_first_per_key" {
				m.fail("append: %v", err)
			} else if err != nil {
				testdb.Must(m.t, m.db.Commit(m.t.Context(), b))
			}
		})
	}
	all.Wait()
}

// decide decides about one dead letter, or says that there was none.
func (m *model) decide(decision func(context.Context, groupcommit.Querier, int64, string) error) {
	dead, err := deadletter.List(m.t.Context(), m.db, deadletter.Filter{Status: deadletter.StatusDead, Receiver: m.receiver}, 0, 1)
	testdb.Must(m.t, err)
	for _, d := range dead {
		if err := decision(m.t.Context(), m.db, d.Number, "ada"); err != nil && !errors.Is(err, deadletter.ErrNotDeadLetter) {
			m.fail("decide: %v", err)
		}
	}
}

// settle lets everything end, and compares what happened with what was sent.
func (m *model) settle() {
	for _, l := range m.both {
		l.Pause(false)
	}
	m.mu.Lock()
	m.scripts = map[string][]string{}
	m.mu.Unlock()
	testrun.Progress(m.r, "no message is open", func() (string, bool) {
		m.decide(deadletter.Retry)
		open := testdb.All[string](m.t, m.db, `
select concat_ws(' ', message_id, ordering_key, status, first, holder, fence, attempts, deaths, waits, due_at - clock_timestamp())
  from inbox where receiver = $1 and status not in ('done', 'discarded') order by id`, m.receiver)
		return strings.Join(open, "\n"), len(open) == 0
	})
	wrong := testdb.All[string](m.t, m.db, `
select concat_ws(' ', message_id, 'stored', s, 'done', d, 'discarded', x, 'effects', e)
  from (select message_id, count(*) filter (where what = 'stored') as s, count(*) filter (where what = 'done') as d, count(*) filter (where what = 'discarded') as x,
               (select count(*) from effects e where e.receiver = h.receiver and e.message_id = h.message_id) as e
          from happened h where receiver = $1 group by receiver, message_id) n
 where s <> d + x or e <> d`, m.receiver)
	stored := testdb.One[int](m.t, m.db, `select count(distinct message_id) from happened where receiver = $1`, m.receiver)
	takeovers := testdb.One[int](m.t, m.db, `select count(*) from happened where receiver = $1 and what = 'taken over'`, m.receiver)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.broken != "":
		m.r.Fatal(m.broken)
	case len(wrong) > 0:
		m.r.Fatalf("not handled once:\n%s", strings.Join(wrong, "\n"))
	case stored != len(m.sent):
		m.r.Fatalf("%d messages were sent, %d stored", len(m.sent), stored)
	case len(m.zombies) > takeovers:
		m.r.Fatalf("%d handlers ran beside another one of their key, %d messages were taken over", len(m.zombies), takeovers)
	}
}

func (m *model) end() {
	for _, l := range m.both {
		l.die()
		testrun.Receive(m.t, "the end of a processor", l.ended)
	}
	m.stop()
	m.watching.Wait()
}
