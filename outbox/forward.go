package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/loop"
)

// Forward publishes the messages of a topic to a broker, in their order and each under its own
// id, until ctx ends; then it returns nil. It returns an error if it cannot make the offset of
// its consumer group, and retries what fails later.
//
// It reads a page, publishes it, and moves the offset when Publish has returned nil, which means
// that the broker has stored the page. So the broker receives each message at least once, and
// the first copies in order; an inbox behind it drops the others by their id. No transaction
// is open meanwhile: a publisher that fails, panics or stalls holds up its own group alone. The
// context of its messages ends after 30 seconds, and then Publish should end: Forward waits for
// it, and publishes the page again with half of its messages.
//
// Of a topic and group one Forward publishes, and the others wait until it ends. It holds a
// session advisory lock on a connection that it takes out of the pool, so a pooler must not
// share sessions. The order and the offset do not depend on the lock: to lose it costs
// repetitions. A group is read by Forward or by subscribers, not by both.
func Forward(ctx context.Context, pool *pgxpool.Pool, group, topic string, to message.Publisher, o Options) error {
	f := &forwarder{reader: newReader(group, o), pool: pool, group: group, topic: topic, to: to}
	f.done, f.log = ctx, f.log.With("topic", topic)
	defer func() { f.hangUp(ctx) }()
	err := errNoPool
	switch {
	case to == nil:
		err = errNoPublisher
	case pool != nil:
		err = nil
		for _, q := range f.BeforeSubscribingQueries(topic, group) {
			if err == nil {
				_, err = pool.Exec(ctx, q.Query, q.Args...)
			}
		}
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("forward %s: %w", topic, err)
	}
	log := bounded{Logger(f.log), f.reader}
	for ctx.Err() == nil {
		nothing, err := f.forward(ctx)
		f.HandleError(log, nothing, err)
	}
	return nil
}

var errNoPublisher = errors.New("the publisher is nil")

// forwarder reads as a subscriber does, and publishes.
type forwarder struct {
	*reader

	pool         *pgxpool.Pool
	group, topic string
	to           message.Publisher

	conn   *pgx.Conn // nil for none
	locked bool      // conn holds the lock of the group
}

func (f *forwarder) hangUp(ctx context.Context) {
	hangUp(ctx, f.conn)
	f.conn, f.locked = nil, false
}

// forward publishes a page.
//
// If we die here: the offset has moved, or the next forwarder publishes the page again. No
// message is passed over: the offset moves only from where the page was read.
// Test: TestForward/a_forwarder_that_dies_before_the_offset_moves_costs_a_repetition.
func (f *forwarder) forward(ctx context.Context) (nothing bool, err error) {
	page, err := f.next(ctx)
	if errors.Is(err, sql.ErrNoRows) {
		return true, nil
	}
	if err == nil {
		within, cancel := context.WithTimeout(ctx, ackDeadline)
		defer cancel()
		page.Msg.SetContext(within)
		err = f.publish(page.Msg) //nolint:contextcheck // a message carries its own context
	}
	if err == nil {
		err = f.move(ctx, page)
	}
	return false, err
}

// lockGroup makes one process the forwarder of a group. The lock is of a group of these
// tables: a database may have them in several schemas. The settings let the server notice
// within half a minute that a process has vanished.
const lockGroup = `
select pg_try_advisory_lock(hashtextextended(jsonb_build_array('outbox_offsets'::regclass::oid, $1::text, $2::text)::text, 0)),
       set_config('tcp_keepalives_idle', '10', false),
       set_config('tcp_keepalives_interval', '5', false),
       set_config('tcp_keepalives_count', '3', false)`

// next reads a page. It returns sql.ErrNoRows if there is none, or if another forwarder of the
// group publishes.
func (f *forwarder) next(ctx context.Context) (page wsql.Row, err error) {
	ctx, cancel := context.WithTimeout(ctx, ackDeadline)
	defer cancel()
	if f.conn != nil && f.conn.IsClosed() {
		f.hangUp(ctx)
	}
	if f.conn == nil {
		if f.conn, err = session(ctx, f.pool); err != nil {
			return page, err
		}
	}
	if !f.locked {
		err = f.conn.QueryRow(ctx, lockGroup, f.topic, f.group).Scan(&f.locked, nil, nil, nil)
		if err != nil || !f.locked {
			return page, cmp.Or(err, sql.ErrNoRows)
		}
	}
	q := f.SelectQuery(f.topic, f.group, nil)
	return f.UnmarshalMessage(f.conn.QueryRow(ctx, q.Query, q.Args...))
}

func (f *forwarder) publish(page *message.Message) error {
	messages, err := Messages(page)
	if err == nil {
		err = loop.Safely(func() error { return f.to.Publish(f.topic, messages...) })
	}
	if err != nil {
		return fmt.Errorf("publish %d messages: %w", len(messages), err)
	}
	return nil
}

var errMoved = errors.New("the offset was moved meanwhile: what lies behind it is published again")

// move moves the offset past a page that is published, also where ctx has ended meanwhile.
func (f *forwarder) move(ctx context.Context, page wsql.Row) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
	defer cancel()
	q := f.AckMessageQuery(f.topic, page, f.group)
	moved, err := f.conn.Exec(ctx, q.Query, q.Args...)
	if err == nil && moved.RowsAffected() == 0 {
		err = errMoved
	}
	return err
}
