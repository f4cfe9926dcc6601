package sandbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

// endpoint answers a request. It reads what it needs under locks on tx, queues its writes
// on b, and returns the answer, which is saved with those writes. An *apiError is answered
// and not saved, and nothing is executed; any other error means that the database could
// not be used.
type endpoint func(ctx context.Context, tx pgx.Tx, b *pgx.Batch, c *call) (answer, error)

// errKeyTaken reports that a rival saved an answer under the key first, so this
// execution was rolled back.
var errKeyTaken = errors.New("idempotency key taken")

// once replays a saved answer, or executes the call once.
func (s *Sandbox) once(ctx context.Context, c *call, run endpoint) (answer, error) {
	for {
		a, found, err := s.saved(ctx, c)
		if found || err != nil {
			return a, err
		}
		a, err = s.execute(ctx, c, run)
		if !errors.Is(err, errKeyTaken) {
			return a, err
		}
	}
}

const selectSaved = `
select fingerprint, request_id, status, body
from idempotency_keys
where key = $1
  and created_at >= clock_timestamp() - $2::interval`

const markReplay = `
update requests
set replay_of = $2
where id = $1`

// saved returns the answer under the call's key, unless there is none or it is
// forgotten.
func (s *Sandbox) saved(ctx context.Context, c *call) (answer, bool, error) {
	if c.key == "" {
		return answer{}, false, nil
	}
	var fingerprint []byte
	var a answer
	err := s.pool.QueryRow(ctx, selectSaved, c.key, c.fault.keepKeys).
		Scan(&fingerprint, &a.replayOf, &a.status, &a.body)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return answer{}, false, nil
	case err != nil:
		return answer{}, false, fmt.Errorf("look up an idempotency key: %w", err)
	case string(fingerprint) != string(c.fingerprint()):
		return answer{}, false, newError(http.StatusBadRequest, typeIdempotency, "",
			"The idempotency key '%s' was first used with another path or other parameters. Use another key for another request.", c.key)
	}
	if _, err := s.pool.Exec(ctx, markReplay, c.id, a.replayOf); err != nil {
		return answer{}, false, fmt.Errorf("count a replay: %w", err)
	}
	return a, true, nil
}

// fingerprint covers what must be equal in a request that repeats a key.
func (c *call) fingerprint() []byte {
	sum := sha256.Sum256([]byte(c.method + "\x00" + c.path + "\x00" + c.params.values.Encode()))
	return sum[:]
}

const deleteForgotten = `
delete from idempotency_keys
where key = $1
  and created_at < clock_timestamp() - $2::interval`

const insertKey = `
insert into idempotency_keys (key, fingerprint, request_id, status, body)
values ($1, $2, $3, $4, $5)`

// execute commits the execution's writes and the saved answer together, or
// neither. A drawn 500 replaces the answer: before, nothing is written; after,
// everything is. The key leads to it from then on.
func (s *Sandbox) execute(ctx context.Context, c *call, run endpoint) (answer, error) {
	if c.method == http.MethodGet {
		if err := s.settle(ctx); err != nil {
			return answer{}, err
		}
	}
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return answer{}, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it does nothing; else the connection goes
	b := &pgx.Batch{}
	a, err := run(ctx, tx, b, c)
	if err != nil {
		return answer{}, err
	}
	if c.fault.errorBefore {
		b = &pgx.Batch{}
	}
	if c.fault.errorBefore || c.fault.errorAfter {
		a = injected().answer()
	}
	if c.key != "" {
		b.Queue(deleteForgotten, c.key, c.fault.keepKeys)
		b.Queue(insertKey, c.key, c.fingerprint(), c.id, a.status, a.body)
	}
	if b.Len() == 0 {
		return a, nil
	}
	err = tx.SendBatch(ctx, b).Close()
	switch {
	case groupcommit.Constraint(err) == "idempotency_keys_pkey":
		return answer{}, errKeyTaken
	case err != nil:
		return answer{}, fmt.Errorf("write the records: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return answer{}, fmt.Errorf("commit the records: %w", err)
	}
	s.nudge()
	return a, nil
}

// nudge wakes Deliver, if it sleeps.
func (s *Sandbox) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
