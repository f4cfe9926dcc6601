package program

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/migrations/version"
)

// Check returns what keeps a program from its work, "" if nothing does.
type Check func(ctx context.Context, q postgres.Querier) (why string, err error)

const (
	readyAge     = time.Second     // how long an answer is valid
	readyTimeout = 2 * time.Second // of all checks
	pingTimeout  = time.Second     // of a connection that may have died unnoticed
)

// Readiness checks whether a program can do its work: the database answers, accepts
// writes, has every migration that the program needs, and passes the program's own
// checks.
//
// It has one connection of its own, so a pool without a free connection does not make
// the program unready. A lost connection, as after a restart of the server, is replaced.
// Calls during a check, or within a second after it, share its answer: the database is
// asked at most once a second.
type Readiness struct {
	pool   *pgxpool.Pool // of one connection
	now    func() time.Time
	checks []Check

	mu   sync.Mutex
	last *answer
}

// answer is complete once given is closed.
type answer struct {
	given chan struct{}
	at    time.Time // zero until then
	why   string
	err   error
}

// NewReadiness does not connect yet. Its connection has the settings of db's.
func NewReadiness(ctx context.Context, db *postgres.DB, now func() time.Time, checks ...Check) *Readiness {
	config := db.Pool().Config()
	config.MaxConns, config.MinConns, config.MinIdleConns = 1, 0, 0
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	config.PingTimeout = pingTimeout
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		panic(err) // only a pool of no connection is refused
	}
	return &Readiness{pool: pool, now: now, checks: append([]Check{writable, migrated}, checks...)}
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
	if r.last == nil || !r.last.at.IsZero() && r.now().Sub(r.last.at) >= readyAge {
		r.last = &answer{given: make(chan struct{})}
		go r.give(context.WithoutCancel(ctx), r.last)
	}
	return r.last
}

func (r *Readiness) give(ctx context.Context, a *answer) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	a.why, a.err = r.check(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	a.at = r.now()
	close(a.given)
}

func (r *Readiness) check(ctx context.Context) (why string, err error) {
	conn, err := r.pool.Acquire(ctx)
	if errors.Is(err, postgres.ErrReadOnly) {
		return readOnly, nil
	}
	if err != nil {
		return "", fmt.Errorf("ask for readiness: %w: %w", postgres.ErrNoConnection, err)
	}
	defer conn.Release()
	for _, check := range r.checks {
		if why, err = check(ctx, conn); why != "" || err != nil {
			return why, err
		}
	}
	return "", nil
}

// Close closes the connection, when the check in flight has ended. It does not wait for it.
func (r *Readiness) Close() { go r.pool.Close() }

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
