package program

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/migrations/version"
)

// Check returns what keeps a program from its work, "" if nothing does.
type Check func(ctx context.Context, q postgres.Querier) (why string, err error)

const (
	readyAge     = time.Second     // how long an answer is valid
	readyTimeout = 2 * time.Second // of all checks
	reuseTimeout = time.Second     // of checks on a connection that may have died unnoticed
)

// Readiness checks whether a program can do its work: the database answers, accepts
// writes, has every migration that the program needs, and passes the program's own
// checks.
//
// It has one connection of its own, so a pool without a free connection does not make
// the program unready. Calls during a check, or within a second after it, share its
// answer: the database is asked at most once a second.
type Readiness struct {
	config *pgx.ConnConfig
	now    func() time.Time
	checks []Check
	conn   *pgx.Conn // used by the check in flight; nil if there is none

	mu     sync.Mutex
	last   *answer
	closed bool
}

// answer is complete once given is closed.
type answer struct {
	given chan struct{}
	at    time.Time // zero until then
	why   string
	err   error
}

// NewReadiness does not connect yet. Its connection has the settings of db's.
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
// means that the database did not answer. It takes two seconds at most.
func (r *Readiness) Ask(ctx context.Context) (why string, err error) {
	a := r.current(ctx)
	select {
	case <-a.given:
		return a.why, a.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// current returns the last answer while it is valid, or the answer of a check that it
// starts. The check continues if its caller gives up.
func (r *Readiness) current(ctx context.Context) *answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || !r.last.at.IsZero() && !r.closed && r.now().Sub(r.last.at) >= readyAge {
		r.last = &answer{given: make(chan struct{})}
		go r.give(context.WithoutCancel(ctx), r.last)
	}
	return r.last
}

func (r *Readiness) give(ctx context.Context, a *answer) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	a.why, a.err = r.try(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	a.at = r.now()
	close(a.given)
	if r.closed {
		r.hangUp()
	}
}

// try checks on the present connection. If that is lost, as after a restart of the
// server, it checks on a new one.
func (r *Readiness) try(ctx context.Context) (why string, err error) {
	if r.conn != nil {
		soon, cancel := context.WithTimeout(ctx, reuseTimeout)
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

// Close closes the connection, after the check in flight has ended. Later calls of Ask
// return the last answer.
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

// hangUp closes the socket without waiting for the server.
func (r *Readiness) hangUp() {
	if r.conn == nil {
		return
	}
	_ = r.conn.PgConn().Conn().Close() // only read from
	r.conn = nil
}

// Health serves /healthz (the process lives), /readyz (ready's answer) and metrics at
// /metrics.
func Health(ready *Readiness, metrics http.Handler) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { status(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		switch why, err := ready.Ask(r.Context()); {
		case err != nil:
			status(w, http.StatusServiceUnavailable, "the database does not answer")
		case why != "":
			status(w, http.StatusServiceUnavailable, why)
		default:
			status(w, http.StatusOK, "ready")
		}
	})
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second}
}

func status(w http.ResponseWriter, code int, what string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, "{\"status\":%q}\n", what)
}
