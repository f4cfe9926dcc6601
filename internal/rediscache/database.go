package rediscache

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// state is the state of the database, as the key of all names and HMACs, and its time.
type state struct {
	key  []byte
	sent time.Time // by our clock, before the database was asked
	then time.Time // by the database's clock, after that
}

// The state of the database, for which there is one history of its keys:
//
//   - the system identifier differs after initdb, so after a dump was restored elsewhere;
//   - the timeline, the first part of a WAL file's name, differs after a promotion and
//     after a recovery to a point in time. pg_control_checkpoint lags behind it;
//   - the start of the server differs after the server's files were put back, which
//     leaves identifier and timeline as they were;
//   - the database's oid differs in a database that was made anew, and the table's file
//     after a truncate, and after a dump was restored into the same database.
//
// All this may be read by every role; the secret needs a grant.
const selectState = `
select s.secret,
       concat_ws(' ',
         c.system_identifier,
         left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
         extract(epoch from pg_postmaster_start_time()),
         d.oid,
         pg_relation_filenode('idempotency_keys')) as state,
       clock_timestamp()                           as now
  from cache_secret s
 cross join pg_control_system() c
  join pg_database d
    on d.datname = current_database()`

// age is at least the time since the database was asked. The wall clock counts if it went
// further than the monotonic one, which stands still while a machine sleeps.
func (s *state) age(now time.Time) time.Duration {
	return max(now.Sub(s.sent), now.Round(0).Sub(s.sent.Round(0)))
}

// fresh reports whether the reading may still be used.
func (s *state) fresh(now time.Time) bool { return s.age(now) <= freshness }

// at is the database's time now or a little later, never earlier, as far as both
// clocks run at the same pace.
func (s *state) at(now time.Time) time.Time { return s.then.Add(s.age(now)) }

// same reports whether the database has not changed between two readings.
func (s *state) same(other *state) bool { return hmac.Equal(s.key, other.key) }

// sum is the HMAC over parts, each with its length, so that no two lists of
// parts are alike.
func sum(key []byte, parts ...string) []byte {
	h := hmac.New(sha256.New, key)
	for _, part := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part) // a hash never fails
	}
	return h.Sum(nil)
}

// connection is a connection to the database beside the pool: requests that have taken
// the whole pool must not switch off the cache when it is needed.
type connection interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Close(ctx context.Context) error
}

// connectionLife is how long a connection is used: an old one may be to a server that
// has been replaced.
const connectionLife = time.Minute

// reader reads the state, on a new connection after a minute and after an error.
type reader struct {
	connect func(context.Context) (connection, error)
	clock   func() time.Time

	conn   connection // nil while there is none
	opened time.Time
}

func (r *reader) read(ctx context.Context) (*state, error) {
	ctx, cancel := context.WithTimeout(ctx, freshness)
	defer cancel()
	if r.conn != nil && r.clock().Sub(r.opened) > connectionLife {
		r.close(ctx)
	}
	if r.conn == nil {
		conn, err := r.connect(ctx)
		if err != nil {
			return nil, fmt.Errorf("connect to the database: %w", err)
		}
		r.conn, r.opened = conn, r.clock()
	}
	s := &state{sent: r.clock()}
	var secret []byte
	var history string
	if err := r.conn.QueryRow(ctx, selectState).Scan(&secret, &history, &s.then); err != nil { // also on a standby
		r.close(ctx)
		return nil, fmt.Errorf("read the state of the database: %w", err)
	}
	s.key = sum(secret, "payonce cache, format 1", history)
	return s, nil
}

func (r *reader) close(ctx context.Context) {
	if r.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_ = r.conn.Close(ctx)
	r.conn = nil
}
