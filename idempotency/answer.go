package idempotency

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
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
	// Looked is what is known of the key already, if the caller has looked a moment ago.
	// A Receiver takes it for its first look where it is of the very key, and has no
	// Cache, which wants to be asked first.
	Looked Looked
}

// Record is a stored answer and what it was given for.
type Record struct {
	Answer      // once it has expired, nothing beside status code and Location is certain
	Fingerprint []byte
	Canonical   []byte // nil where it was not kept
	ExpiresAt   time.Time
	Expired     bool // by the database's clock
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

// Writes are the statements of this package that may share a commit.
func Writes() []groupcommit.Statement {
	return []groupcommit.Statement{
		groupcommit.Insert(insertAnswer, "%s", "%s", "%s", "%s", "%s", "%s", "%s", "%s", "%s", "%s"),
	}
}
