package rediscache

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/payonce/payonce/internal/postgres"
)

// reading is what is known of the database: its state, as the key of all names
// and seals, and its time.
type reading struct {
	key  []byte
	sent time.Time // by our clock, before the database was asked
	then time.Time // by the database's clock, after that
}

// The state of the database, for which there is one history of its keys:
//
//   - the system identifier is another one after initdb, so after a dump was
//     restored elsewhere;
//   - the timeline, the first part of a WAL file's name, is another one after a
//     promotion and after a recovery to a point in time. pg_control_checkpoint
//     would lag behind it;
//   - the start of the server is another one after the server's files were put
//     back, which leaves identifier and timeline as they were;
//   - the database's oid is another one in a database that was made anew, and the
//     table's file after a truncate, and after a dump was restored into the same
//     database.
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

// read asks the database for its state. On a standby it is an error.
func read(ctx context.Context, q postgres.Querier, clock func() time.Time) (*reading, error) {
	r := reading{sent: clock()}
	var secret []byte
	var state string
	if err := q.QueryRow(ctx, selectState).Scan(&secret, &state, &r.then); err != nil {
		return nil, fmt.Errorf("read the state of the database: %w", err)
	}
	r.key = sum(secret, "payonce cache, format 1", state)
	return &r, nil
}

// age is at least the time that passed since the database was asked. Our wall
// clock counts where it went further than the monotonic one, which stands still
// while a machine sleeps.
func (r *reading) age(now time.Time) time.Duration {
	return max(now.Sub(r.sent), now.Round(0).Sub(r.sent.Round(0)))
}

// fresh tells whether the reading may still be used.
func (r *reading) fresh(now time.Time) bool { return r.age(now) <= freshness }

// at is the database's time now or a little later, never earlier, as far as both
// clocks run at the same pace.
func (r *reading) at(now time.Time) time.Time { return r.then.Add(r.age(now)) }

// same tells whether the database has not changed between two readings.
func (r *reading) same(other *reading) bool { return hmac.Equal(r.key, other.key) }

// sum is the HMAC over parts, each with its length, so that no two lists of
// parts are alike.
func sum(key []byte, parts ...string) []byte {
	h := hmac.New(sha256.New, key)
	for _, part := range parts {
		_, _ = fmt.Fprintf(h, "%d:", len(part)) // a hash never fails
		_, _ = h.Write([]byte(part))
	}
	return h.Sum(nil)
}
