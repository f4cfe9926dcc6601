package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/migrations/version"
)

const (
	readyAge      = time.Second     // how long an answer is valid
	readyTimeout  = 2 * time.Second // of all checks
	probeInterval = time.Second
	probesForIdle = 5                      // one of so many probes pings while no connection is in use
	probesForLook = 10                     // one of so many tries the other hosts too
	failedProbe   = 400 * time.Millisecond // after a probe that failed, and while commits hang
)

// Readiness checks whether a program can do its work: the database answers, accepts
// writes, confirms commits, has every migration that the program needs, and passes the
// program's own checks.
//
// It has one connection of its own, so a pool without a free connection does not make
// the program unready. A lost connection, as after a restart of the server, is replaced.
// Calls during a check, or within a second after it, share its answer: the database is
// asked at most once a second.
type Readiness struct {
	// Own returns what else keeps the program from its work, "" if nothing does. It is set before the first call
	// and asked after the database.
	Own func(ctx context.Context) (why string)

	db   *postgres.DB
	pool *pgxpool.Pool // of one connection
	now  func() time.Time

	mu  sync.Mutex // held during a check
	at  time.Time  // of the last answer
	why string
	err error
}

// NewReadiness does not connect yet. Its connection has the settings of db's. Until ctx ends
// it pings the server every second, or every five while no connection is in use, and where that does not answer it finds the new primary of a
// failover for all connections of db. The other hosts of the URL are tried every ten seconds, or at
// each ping while commits hang.
func NewReadiness(ctx context.Context, db *postgres.DB, now func() time.Time) *Readiness {
	pool, err := pgxpool.NewWithConfig(ctx, db.Probe())
	if err != nil {
		panic(err) // only a pool of no connection is refused
	}
	r := &Readiness{db: db, pool: pool, now: now}
	go r.probe(ctx)
	return r
}

func (r *Readiness) probe(ctx context.Context) {
	ping := func() error { // a connection that is begun is made after it
		ctx, cancel := context.WithTimeout(ctx, readyTimeout)
		defer cancel()
		return r.pool.AcquireFunc(ctx, func(*pgxpool.Conn) error { return nil })
	}
	var looks sync.Mutex // held while the other hosts are tried, each of which may hang for a while
	pause := probeInterval
	for probes := 0; loop.Pause(ctx, pause, nil); probes++ {
		if r.db.Pool().Stat().AcquiredConns() == 0 && probes%probesForIdle != 0 && pause == probeInterval {
			continue // what a server that hangs does not answer is in use
		}
		failed, stalled := ping() != nil, r.db.Committer().Stalled()
		if (stalled || probes%probesForLook == 0) && looks.TryLock() { // an old primary may still answer
			go func() {
				defer looks.Unlock()
				r.db.Look(ctx)
			}()
		}
		if pause = probeInterval; failed || stalled {
			pause = failedProbe
		}
	}
}

const readOnly = "the database server is read-only: it is a standby, or default_transaction_read_only is on"

const selectReadOnly = `
-- program.selectReadOnly
select current_setting('transaction_read_only')::boolean`

var errLacksMigration = errors.New("the database lacks a migration: run payonce migrate")

// Migrated refuses a database that lacks a migration.
func Migrated(ctx context.Context, q postgres.Querier) error {
	lacks, err := version.Pending(ctx, q)
	if err == nil && lacks {
		err = errLacksMigration
	}
	return err
}

// Ask returns what keeps the program from its work, "" if nothing does. An error
// means that the database did not answer. It takes two seconds at most, also for a caller
// that has given up: others wait for the same answer.
func (r *Readiness) Ask(ctx context.Context) (why string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now().Sub(r.at) >= readyAge {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout)
		defer cancel()
		r.why, r.err = r.check(ctx)
		r.at = r.now()
	}
	return r.why, r.err
}

func (r *Readiness) check(ctx context.Context) (why string, err error) {
	conn, err := r.pool.Acquire(ctx)
	if errors.Is(err, postgres.ErrReadOnly) {
		return readOnly, nil
	}
	if err != nil {
		return "", fmt.Errorf("ask for readiness: %w", err)
	}
	defer conn.Release()
	var refuses bool
	err = conn.QueryRow(ctx, selectReadOnly).Scan(&refuses)
	switch {
	case err != nil:
		return "", err
	case refuses:
		return readOnly, nil
	case r.db.Committer().Stalled():
		return "the database confirms no commit: its synchronous standby is away, or it hangs", nil
	}
	switch err = Migrated(ctx, conn); {
	case errors.Is(err, errLacksMigration):
		return err.Error(), nil
	case err == nil && r.Own != nil:
		why = r.Own(ctx)
	}
	return why, err
}

// Close closes the connection, when the check in flight has ended. It does not wait for it.
func (r *Readiness) Close() { go r.pool.Close() }

// Health serves /healthz (the process lives), /readyz (ready's answer) and, unless they are
// nil, metrics at /metrics.
func Health(ready *Readiness, metrics http.Handler) *http.Server {
	mux := http.NewServeMux()
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { status(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		why, err := ready.Ask(r.Context())
		if err != nil {
			why = "the database does not answer"
		}
		if why != "" {
			status(w, http.StatusServiceUnavailable, why)
			return
		}
		status(w, http.StatusOK, "ready")
	})
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second}
}

func status(w http.ResponseWriter, code int, what string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"status": what})
}
