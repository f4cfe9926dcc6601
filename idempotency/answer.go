package idempotency

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// What a key that is not free can answer instead of its stored answer.
var (
	// ErrReused is returned for a key that was used for another request.
	ErrReused = errors.New("the key was used for another request")
	// ErrExpired is returned for a key whose answer is no longer kept. The work
	// was done; it is never done again.
	ErrExpired = errors.New("the key has expired")
)

// Key is a client's key in its place: the same value in another scope or for
// another operation is another key.
type Key struct {
	Scope     string // whose key it is
	Operation string // what it is for
	Value     string
}

// Answer is a finished answer, kept byte for byte.
type Answer struct {
	StatusCode  int
	ContentType string
	Location    string // empty if none
	Body        []byte
}

// Record is a stored answer and what it was given for.
type Record struct {
	Answer
	Fingerprint []byte
	ExpiresAt   time.Time
	Expired     bool // by the database's clock
}

// Replay is the stored answer, if the request is the one that it was given for:
// else ErrReused, or ErrExpired.
func (r Record) Replay(fingerprint []byte) (Answer, error) {
	switch {
	case !bytes.Equal(r.Fingerprint, fingerprint):
		return Answer{}, ErrReused
	case r.Expired:
		return r.Answer, ErrExpired
	}
	return r.Answer, nil
}

// One statement answers both cases, so that a free key comes with the database's
// time and needs no clock of ours.
const selectAnswer = `
select c.now,
       k.key is not null                            as found,
       coalesce(k.fingerprint, '')                  as fingerprint,
       coalesce(k.status_code, 0)                   as status_code,
       coalesce(k.content_type, '')                 as content_type,
       coalesce(k.location, '')                     as location,
       coalesce(k.body, '')                         as body,
       coalesce(k.expires_at, c.now)                as expires_at,
       coalesce(k.expires_at <= c.now, false)       as expired
  from (select clock_timestamp() as now) as c
  left join idempotency_keys k
    on k.scope = $1
   and k.operation = $2
   and k.key = $3`

// Look reads a key: its record, or found false and the database's time. It
// writes nothing, so a replay costs one index probe.
func Look(ctx context.Context, q postgres.Querier, key Key) (record Record, found bool, now time.Time, err error) {
	err = q.QueryRow(ctx, selectAnswer, key.Scope, key.Operation, key.Value).Scan(
		&now, &found, &record.Fingerprint, &record.StatusCode, &record.ContentType,
		&record.Location, &record.Body, &record.ExpiresAt, &record.Expired)
	if err != nil {
		return Record{}, false, time.Time{}, fmt.Errorf("look up an idempotency key: %w", err)
	}
	return record, found, now, nil
}

// A plain insert: `on conflict do nothing` would let the rest of the batch run.
const insertAnswer = `
insert into idempotency_keys
       (scope, operation, key, fingerprint, status_code, content_type, location, body, expires_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)`

// Claim queues the key with its finished answer as the first write of the batch
// that does the work. It does no I/O. If the key is taken, the whole batch is
// refused (IsTaken); if somebody is taking it at this moment, the batch waits
// for the outcome, at most for the pool's lock time-out. A rollback leaves the
// key free.
func Claim(b *pgx.Batch, key Key, fingerprint []byte, a Answer, expires time.Time) {
	body := a.Body
	if body == nil {
		body = []byte{} // an empty body, not a missing one
	}
	b.Queue(insertAnswer, key.Scope, key.Operation, key.Value, fingerprint,
		a.StatusCode, a.ContentType, a.Location, body, expires)
}

// IsTaken tells whether a commit was refused because its key has an answer.
func IsTaken(err error) bool { return postgres.Constraint(err) == "idempotency_keys_once" }
