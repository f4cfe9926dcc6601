package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// One statement answers for keys that are taken and for free ones, so that a free
// key comes with the database's time and needs no clock of ours. A row that was swept
// stays expired should the server's clock step back: what is gone is never replayed
// as an empty answer.
//
// The offset keeps the subquery a probe for each key. As a condition on the place of
// the keys it was planned, where there were few, to read all that a scope has.
const selectAnswers = `
select asked.n,
       c.scope,
       c.now,
       k.key is not null                            as found,
       coalesce(k.fingerprint, '')                  as fingerprint,
       k.request,
       coalesce(k.status_code, 0)                   as status_code,
       coalesce(k.content_type, '')                 as content_type,
       coalesce(k.location, '')                     as location,
       coalesce(k.body, '')                         as body,
       coalesce(k.expires_at, c.now)                as expires_at,
       coalesce(k.expires_at <= c.now
                or k.body is null, false)           as expired,
       current_setting('synchronous_standby_names') <> '' as synchronous
  from (select clock_timestamp() as now, coalesce($1, current_setting('payonce.merchant', true)) as scope) as c
 cross join unnest($2::text[], $3::text[]) with ordinality as asked(operation, value, n)
  left join lateral (
            select key, fingerprint, request, status_code, content_type, location, body, expires_at
              from idempotency_keys
             where scope = c.scope
               and operation = asked.operation
               and key = asked.value
            offset 0) as k
    on true`

// Looked is what the store says of a key.
type Looked struct {
	Key Key

	record      Record
	found       bool
	now         time.Time // the database's; zero where nothing was asked
	synchronous bool      // the server's commits wait for a standby
}

// Look reads a key: its record, or found false and the database's time. It
// writes nothing, so a replay costs one index probe.
func Look(ctx context.Context, q postgres.Querier, key Key) (record Record, found bool, now time.Time, err error) {
	all, err := lookAll(ctx, q, []Key{key})
	if err != nil {
		return Record{}, false, time.Time{}, notLooked(err)
	}
	return all[0].record, all[0].found, all[0].now, nil
}

// lookAll is Look for many keys of one scope.
func lookAll(ctx context.Context, q postgres.Querier, keys []Key) ([]Looked, error) {
	all, each := unlooked(keys)
	look := looking(&keys[0].Scope, each)
	rows, err := q.Query(ctx, look.SQL, look.Args...)
	if err != nil {
		return nil, err
	}
	return all, look.Rows(rows)
}

// unlooked are looks at keys, of which nothing is known yet.
func unlooked(keys []Key) (all []Looked, each []*Looked) {
	all, each = make([]Looked, len(keys)), make([]*Looked, len(keys))
	for i, key := range keys {
		all[i].Key = key
		each[i] = &all[i]
	}
	return all, each
}

func notLooked(err error) error { return fmt.Errorf("look up an idempotency key: %w", err) }

// Looking looks at keys along with what else is read in a round trip (DB.Read), and
// tells each of them. They are looked for as keys of the merchant who is named there,
// whatever scope they were given, and that is their scope afterwards.
func Looking(each []*Looked) postgres.Read { return looking(nil, each) }

// looking is the look at keys of one scope, or of the merchant who is named where it
// is nil.
func looking(scope *string, each []*Looked) postgres.Read {
	operations, values := make([]string, len(each)), make([]string, len(each))
	for i, l := range each {
		operations[i], values[i] = l.Key.Operation, l.Key.Value
	}
	return postgres.Read{
		SQL:  selectAnswers,
		Args: []any{scope, operations, values},
		Rows: func(rows pgx.Rows) error {
			var n int
			var l Looked
			_, err := pgx.ForEachRow(rows, []any{
				&n, &l.Key.Scope, &l.now, &l.found, &l.record.Fingerprint, &l.record.Canonical,
				&l.record.StatusCode, &l.record.ContentType, &l.record.Location, &l.record.Body,
				&l.record.ExpiresAt, &l.record.Expired, &l.synchronous,
			}, func() error {
				l.Key.Operation, l.Key.Value = operations[n-1], values[n-1]
				*each[n-1] = l
				return nil
			})
			return err
		},
	}
}

// Looks are Look for many at once: those that are taken at the same moment share a
// round trip (postgres.Reads). A scope is a tenant, and each key is read as the
// tenant of its scope: whoever asks along with others is shown nothing of theirs.
type Looks struct {
	together *postgres.Reads[Key, Looked]
}

// NewLooks makes them. So many round trips are under way at a time, at most.
func NewLooks(db *postgres.DB, most int) *Looks {
	return &Looks{together: postgres.NewReads(most, func(ctx context.Context, keys []Key) ([]Looked, error) {
		return lookAsTenants(ctx, db, keys)
	})}
}

// Look is the function of that name, in the company of others.
func (l *Looks) Look(ctx context.Context, key Key) (record Record, found bool, now time.Time, err error) {
	one, err := l.look(ctx, key)
	return one.record, one.found, one.now, err
}

func (l *Looks) look(ctx context.Context, key Key) (Looked, error) {
	one, err := l.together.Ask(ctx, key)
	if err != nil {
		return Looked{}, notLooked(err)
	}
	return one, nil
}

func lookAsTenants(ctx context.Context, db *postgres.DB, keys []Key) ([]Looked, error) {
	all, each := unlooked(keys)
	of := map[string][]*Looked{}
	for _, l := range each {
		of[l.Key.Scope] = append(of[l.Key.Scope], l)
	}
	var reads []postgres.Read
	for tenant, theirs := range of {
		reads = append(reads, postgres.As(tenant), looking(&tenant, theirs))
	}
	return all, db.Read(ctx, reads...)
}
