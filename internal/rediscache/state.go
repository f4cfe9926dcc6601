package rediscache

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/idempotency"
)

// state is the state of the database, as the key of all names and entries, and its time.
type state struct {
	key  []byte
	aead cipher.AEAD // of entries, with a random nonce in each
	sent time.Time   // by our clock, before the database was asked
	then time.Time   // by the database's clock, after that
}

// freshness is how long a reading of the state may be used.
const freshness = 2 * time.Second

// selectState reads the state of the database, for which there is one history of its keys:
//
//   - the system identifier differs after initdb, so after a dump was restored elsewhere;
//   - the timeline, the first part of a WAL file's name, differs after a promotion and
//     after a recovery to a point in time. pg_control_checkpoint lags behind it;
//   - the start of the server differs after the server's files were put back, which
//     leaves identifier and timeline as they were;
//   - the database's oid differs in a database that was made anew, and the table's file
//     after a truncate, and after a dump was restored into the same database.
//
// All this may be read by every role; the secret needs a grant. A standby refuses to tell
// its place in the WAL.
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

func readState(ctx context.Context, db *pgxpool.Pool, clock func() time.Time) (*state, error) {
	ctx, cancel := context.WithTimeout(ctx, freshness)
	defer cancel()
	s := &state{sent: clock()}
	var secret []byte
	var history string
	if err := db.QueryRow(ctx, selectState).Scan(&secret, &history, &s.then); err != nil {
		return nil, fmt.Errorf("read the state of the database: %w", err)
	}
	// A program with other fields of a record neither finds nor overwrites these entries.
	format, err := json.Marshal(idempotency.Record{})
	s.key = sum(secret, "payonce cache, AES-GCM", string(format), history)
	block, badKey := aes.NewCipher(sum(s.key, "entries"))
	if err = errors.Join(err, badKey); err == nil {
		s.aead, err = cipher.NewGCMWithRandomNonce(block)
	}
	return s, err
}

// age is at least the time since the database was asked. The wall clock counts if it went
// further than the monotonic one, which stands still while a machine sleeps.
func (s *state) age(now time.Time) time.Duration {
	return max(now.Sub(s.sent), now.Round(0).Sub(s.sent.Round(0)))
}

// isFresh reports whether there is a reading that may still be used.
func (s *state) isFresh(now time.Time) bool { return s != nil && s.age(now) <= freshness }

// at is the database's time now or a little later, never earlier, as far as both
// clocks run at the same pace.
func (s *state) at(now time.Time) time.Time { return s.then.Add(s.age(now)) }

// equals reports whether the database has not changed between two readings.
func (s *state) equals(other *state) bool { return hmac.Equal(s.key, other.key) }

// sum is the HMAC over parts, each with its length, so that no two lists of
// parts are alike.
func sum(key []byte, parts ...string) []byte {
	h := hmac.New(sha256.New, key)
	for _, part := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part) // a hash never fails
	}
	return h.Sum(nil)
}

// name is the name of a key's entry. It is an HMAC, so that a reader of Redis can neither
// see a key nor test a guess.
func (s *state) name(key idempotency.Key) string {
	return "payonce:answer:" + base64.RawURLEncoding.EncodeToString(sum(s.key, "name", key.Scope, key.Operation, key.Value))
}

// seal is the value of an entry: the record as JSON, without the request, encrypted and
// bound to its key with AES-256-GCM.
func (s *state) seal(key idempotency.Key, record idempotency.Record) ([]byte, error) {
	record.Canonical = nil
	text, err := json.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	return s.aead.Seal(nil, nil, text, []byte(s.name(key))), nil
}

// open is the record in a value. It is false for a value that was not sealed for this
// key in this state of the database.
func (s *state) open(key idempotency.Key, value []byte) (record idempotency.Record, authentic bool) {
	text, err := s.aead.Open(nil, nil, value, []byte(s.name(key)))
	return record, err == nil && json.Unmarshal(text, &record) == nil
}
