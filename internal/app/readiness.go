package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/migrations/version"
)

// Check looks for something that keeps a program from its work, and says what it
// is; "" if nothing does.
type Check func(ctx context.Context, q postgres.Querier) (why string, err error)

// How long an answer about readiness holds, how long it is looked for, and how
// much of that goes to a connection which may have died unnoticed.
const (
	readyHolds     = time.Second
	readyTime      = 2 * time.Second
	readyTimeOfOld = time.Second
)

// Readiness tells whether a program can do its work: the database answers, takes
// writes, has every migration that the program needs, and passes the program's own checks.
//
// It looks on one connection of its own. So whoever asks takes none of the pool's,
// and a pool that is all in use does not make the program unready. Whoever asks
// while it looks, or within a second after, gets the same answer: the database is
// asked once a second at most, however many ask.
type Readiness struct {
	config *pgx.ConnConfig
	now    func() time.Time
	checks []Check
	conn   *pgx.Conn // of the look that is under way; nil if there is none

	mu     sync.Mutex
	last   *answer
	closed bool
}

// answer is complete once given is closed.
type answer struct {
	given chan struct{}
	at    time.Time // zero while it is looked for
	why   string
	err   error
}

// NewReadiness connects to nothing yet. Its connection is as those of db.
func NewReadiness(db *postgres.DB, now func() time.Time, checks ...Check) *Readiness {
	return &Readiness{
		config: db.Pool().Config().ConnConfig,
		now:    now,
		checks: append([]Check{writable, migrated}, checks...),
	}
}

const readOnly = "the database server is read-only: it is a standby, or default_transaction_read_only is on"

func writable(ctx context.Context, q postgres.Querier) (why string, err error) {
	var refuses bool
	err = q.QueryRow(ctx, `select current_setting('transaction_read_only')::boolean`).Scan(&refuses)
	if err != nil || !refuses {
		return "", err
	}
	return readOnly, nil
}

func migrated(ctx context.Context, q postgres.Querier) (why string, err error) {
	lacks, err := version.Pending(ctx, q)
	if err != nil || !lacks {
		return "", err
	}
	return "the database lacks a migration: run payonce migrate", nil
}

// Ask returns what keeps the program from its work, "" if nothing does. An error
// says that the database did not answer. It takes two seconds at most.
func (r *Readiness) Ask(ctx context.Context) (why string, err error) {
	a := r.current(ctx)
	select {
	case <-a.given:
		return a.why, a.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// current is the last answer while it is fresh, or the answer of a check that it
// starts. The check goes on when a caller that waits for it gives up.
func (r *Readiness) current(ctx context.Context) *answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || !r.last.at.IsZero() && !r.closed && r.now().Sub(r.last.at) >= readyHolds {
		r.last = &answer{given: make(chan struct{})}
		go r.give(context.WithoutCancel(ctx), r.last)
	}
	return r.last
}

func (r *Readiness) give(ctx context.Context, a *answer) {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	a.why, a.err = r.look(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	a.at = r.now()
	close(a.given)
	if r.closed {
		r.hangUp()
	}
}

// look asks on the connection that is there. Only if that is lost, which a server
// that was restarted is no reason to be unready for, it makes another.
func (r *Readiness) look(ctx context.Context) (why string, err error) {
	if r.conn != nil {
		soon, cancel := context.WithTimeout(ctx, readyTimeOfOld)
		defer cancel()
		if why, err := r.check(soon); !r.conn.IsClosed() {
			return why, err
		}
	}
	r.conn, err = pgx.ConnectConfig(ctx, r.config)
	if errors.Is(err, postgres.ErrReadOnly) {
		return readOnly, nil
	}
	if err != nil {
		return "", fmt.Errorf("ask for readiness: %w: %w", postgres.ErrNoConnection, err)
	}
	return r.check(ctx)
}

func (r *Readiness) check(ctx context.Context) (why string, err error) {
	for _, check := range r.checks {
		if why, err = check(ctx, r.conn); why != "" || err != nil {
			return why, err
		}
	}
	return "", nil
}

var errClosed = errors.New("the program ends")

// Close ends the connection, if need be when the look that is under way has
// ended. Whoever asks then is told the last answer.
func (r *Readiness) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.last == nil {
		r.last = &answer{given: make(chan struct{}), err: errClosed}
		close(r.last.given)
	} else if !r.last.at.IsZero() {
		r.hangUp()
	}
}

// hangUp waits for nobody: to the server the end of the connection is that of an
// idle session.
func (r *Readiness) hangUp() {
	if r.conn == nil {
		return
	}
	_ = r.conn.PgConn().Conn().Close() // only read from
	r.conn = nil
}
