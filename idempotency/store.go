package idempotency

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

//go:embed schema.sql
var schema string

// Schema returns the SQL of idempotency_keys, in the first schema of the search_path: a migration for goose or psql.
func Schema() string { return schema }

// insertAnswer is a plain insert: `on conflict do nothing` would let the rest of the batch run.
const (
	insertAnswer = `
-- idempotency.insertAnswer
insert into idempotency_keys
       (scope, operation, key, fingerprint, request, status_code, headers, body, expires_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)`

	insertAnswers = `
-- idempotency.insertAnswer
insert into idempotency_keys
       (scope, operation, key, fingerprint, request, status_code, headers, body, expires_at)
select *
  from unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bytea[], $6::int[], $7::jsonb[], $8::bytea[], $9::timestamptz[])`
)

// Claim queues the key with its finished answer into a batch, as Receive does. A taken key refuses the batch; of a
// group each then commits individually. While a rival claims the key, the batch waits, at most for the lock time-out.
func Claim(b *pgx.Batch, key Key, r Request, a Answer, expires time.Time) {
	b.Queue(insertAnswer, key.Scope, key.Operation, key.Value, nonNull(r.Fingerprint), r.Canonical, a.StatusCode, a.headers(), nonNull(a.Body), expires)
}

// nonNull is a value that pgx does not send as null, also if it is nil.
func nonNull(value []byte) []byte { return append([]byte{}, value...) }

// headers is the stored form of the headers, which the server refuses where one is no text.
func (a Answer) headers() string {
	text, _ := json.Marshal(a.Header)
	return string(text)
}

// Writes are the statements of this package that may share a commit.
func Writes() []groupcommit.Statement {
	return []groupcommit.Statement{{SQL: insertAnswer, ManyRows: insertAnswers}}
}

// selectKeys reads taken keys and free ones in one statement, so that a free key comes with the database's time. A
// tombstone stays expired if the server's clock steps back. offset 0 keeps the planner from joining
// the subquery, which may read the whole scope: each key is a probe of the index.
//
// With a synchronous standby, reading a found row also writes to the WAL. So the read waits for the standby, and what
// it returns cannot be lost in a failover. A row may be visible before the standby has it: after a restart of the
// primary, or when an operator ended the wait of its commit.
const selectKeys = `
-- idempotency.selectKeys
select asked.n,
       c.now,
       k.key is not null                         as found,
       coalesce(k.fingerprint, '')               as fingerprint,
       k.request,
       coalesce(k.status_code, 0)                as status_code,
       coalesce(nullif(k.headers, '{}'), 'null') as headers,
       coalesce(k.body, '')                      as body,
       coalesce(k.created_at, c.now)             as created_at,
       coalesce(k.expires_at, c.now)             as expires_at,
       coalesce(k.expires_at <= c.now
                or k.body is null, false)        as expired
  from (select clock_timestamp() as now) as c
 cross join unnest($1::text[], $2::text[], $3::text[]) with ordinality as asked(scope, operation, value, n)
  left join lateral (
            select key, fingerprint, request, status_code, headers, body, created_at, expires_at
              from idempotency_keys
             where scope = asked.scope
               and operation = asked.operation
               and key = asked.value
               and (current_setting('synchronous_standby_names') = ''
                    or pg_logical_emit_message(true, 'payonce', '') is not null)
            offset 0) as k
    on true`

// ReadKey reads the state of a key, which survives a failover.
func ReadKey(ctx context.Context, q groupcommit.Querier, key Key) (KeyState, error) {
	state := KeyState{Key: key}
	args, scan := keysQuery([]*KeyState{&state})
	rows, _ := q.Query(ctx, selectKeys, args...) // they have the error too
	if err := scan(rows); err != nil {
		return state, fmt.Errorf("read an idempotency key: %w", err)
	}
	return state, nil
}

// QueueKeys queues the read of the states of keys, which survive a failover if the batch ends without an error.
func QueueKeys(b *pgx.Batch, states []*KeyState) {
	args, scan := keysQuery(states)
	b.Queue(selectKeys, args...).Query(scan)
}

// keysQuery returns the arguments of selectKeys, and what scans its rows into states.
func keysQuery(states []*KeyState) (args []any, scan func(pgx.Rows) error) {
	scopes, operations, values := make([]string, len(states)), make([]string, len(states)), make([]string, len(states))
	for i, s := range states {
		scopes[i], operations[i], values[i] = s.Key.Scope, s.Key.Operation, s.Key.Value
	}
	return []any{scopes, operations, values}, func(rows pgx.Rows) error {
		var n int
		var s KeyState
		var header []byte // pgx would decode it by encoding/json, which costs twice as much
		_, err := pgx.ForEachRow(rows, []any{
			&n, &s.Now, &s.Found, &s.Fingerprint, &s.Canonical, &s.StatusCode, &header, &s.Body, &s.CreatedAt, &s.ExpiresAt, &s.Expired,
		}, func() (err error) {
			s.Key, s.Header = states[n-1].Key, nil
			err = json.Unmarshal(header, &s.Header)
			*states[n-1] = s
			return err
		})
		return err
	}
}

// expireKeys makes tombstones of expired keys. now() can bound an index scan, clock_timestamp() cannot. It updates by
// ctid, which stays while the row is locked: a join by key may read the whole table.
const expireKeys = `
-- idempotency.expireKeys
with due as (
  select ctid
    from idempotency_keys
   where body is not null
     and expires_at <= now()
   order by expires_at
   limit $1
     for update skip locked
)
update idempotency_keys
   set body    = null,
       request = null,
       headers = case when headers ? 'Location' then jsonb_build_object('Location', headers -> 'Location') else '{}' end
 where ctid = any (array(select ctid from due))
returning 1`

// ExpireKeys turns up to limit expired keys into tombstones and returns their number: it deletes answer and request,
// and keeps what tells a reuse apart. Several processes may call it at once. Call it now and then, until it returns
// fewer than limit. To forget a key, delete its row when no client can send it again.
func ExpireKeys(ctx context.Context, q groupcommit.Querier, limit int) (int, error) {
	rows, _ := q.Query(ctx, expireKeys, limit) // they have the error too
	expired, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return 0, fmt.Errorf("expire idempotency keys: %w", err)
	}
	return len(expired), nil
}
