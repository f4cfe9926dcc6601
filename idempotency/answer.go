package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
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

// Request is what tells apart the requests that come under one key.
type Request struct {
	// Fingerprint is what decides: see the function of that name.
	Fingerprint []byte
	// Canonical is the request as JSON, kept as long as the answer, to say where
	// another request differs. It may be nil, and then nobody says so.
	Canonical []byte
	// Also are values of further keys of the same place, which a Receiver asks and
	// claims with the first.
	Also []string
}

// Record is a stored answer and what it was given for.
type Record struct {
	Answer      // once it has expired, nothing beside status code and Location is certain
	Fingerprint []byte
	Canonical   []byte // nil where it was not kept
	ExpiresAt   time.Time
	Expired     bool // by the database's clock
}

// One statement answers both cases, so that a free key comes with the database's
// time and needs no clock of ours. A row that was swept stays expired should the
// server's clock step back: what is gone is never replayed as an empty answer.
const selectAnswer = `
select c.now,
       k.key is not null                            as found,
       coalesce(k.fingerprint, '')                  as fingerprint,
       k.request,
       coalesce(k.status_code, 0)                   as status_code,
       coalesce(k.content_type, '')                 as content_type,
       coalesce(k.location, '')                     as location,
       coalesce(k.body, '')                         as body,
       coalesce(k.expires_at, c.now)                as expires_at,
       coalesce(k.expires_at <= c.now
                or k.body is null, false)           as expired
  from (select clock_timestamp() as now) as c
  left join idempotency_keys k
    on k.scope = $1
   and k.operation = $2
   and k.key = $3`

// Look reads a key: its record, or found false and the database's time. It
// writes nothing, so a replay costs one index probe.
func Look(ctx context.Context, q postgres.Querier, key Key) (record Record, found bool, now time.Time, err error) {
	err = q.QueryRow(ctx, selectAnswer, key.Scope, key.Operation, key.Value).Scan(
		&now, &found, &record.Fingerprint, &record.Canonical,
		&record.StatusCode, &record.ContentType, &record.Location, &record.Body,
		&record.ExpiresAt, &record.Expired)
	if err != nil {
		return Record{}, false, time.Time{}, fmt.Errorf("look up an idempotency key: %w", err)
	}
	return record, found, now, nil
}

// A plain insert: `on conflict do nothing` would let the rest of the batch run.
const insertAnswer = `
insert into idempotency_keys
       (scope, operation, key, fingerprint, request, status_code, content_type, location, body, expires_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

// Claim queues the key with its finished answer as the first write of the batch
// that does the work. It does no I/O. If the key is taken, the whole batch is
// refused (IsTaken); if somebody is taking it at this moment, the batch waits
// for the outcome, at most for the pool's lock time-out. A rollback leaves the
// key free.
func Claim(b *pgx.Batch, key Key, r Request, a Answer, expires time.Time) {
	body := a.Body
	if body == nil {
		body = []byte{} // an empty body, not a missing one
	}
	b.Queue(insertAnswer, key.Scope, key.Operation, key.Value, r.Fingerprint, r.Canonical,
		a.StatusCode, a.ContentType, a.Location, body, expires)
}

// IsTaken tells whether a commit was refused because its key has an answer.
func IsTaken(err error) bool { return postgres.Constraint(err) == "idempotency_keys_once" }
