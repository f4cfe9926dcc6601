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
                or k.body is null, false)           as expired
  from (select clock_timestamp() as now) as c
 cross join unnest($2::text[], $3::text[]) with ordinality as asked(operation, value, n)
  left join lateral (
            select key, fingerprint, request, status_code, content_type, location, body, expires_at
              from idempotency_keys
             where scope = $1
               and operation = asked.operation
               and key = asked.value
            offset 0) as k
    on true`

// looked is what is known of a key.
type looked struct {
	record Record
	found  bool
	now    time.Time // the database's
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
func lookAll(ctx context.Context, q postgres.Querier, keys []Key) ([]looked, error) {
	rows, err := q.Query(ctx, selectAnswers, asking(keys)...)
	all := make([]looked, len(keys))
	if err != nil {
		return nil, err
	}
	return all, readAnswers(rows, all)
}

func notLooked(err error) error { return fmt.Errorf("look up an idempotency key: %w", err) }

// asking are the arguments of selectAnswers for keys of one scope.
func asking(keys []Key) []any {
	operations, values := make([]string, len(keys)), make([]string, len(keys))
	for i, key := range keys {
		operations[i], values[i] = key.Operation, key.Value
	}
	return []any{keys[0].Scope, operations, values}
}

// readAnswers reads what is said of each key.
func readAnswers(rows pgx.Rows, into []looked) error {
	var n int
	var l looked
	_, err := pgx.ForEachRow(rows, []any{
		&n, &l.now, &l.found, &l.record.Fingerprint, &l.record.Canonical,
		&l.record.StatusCode, &l.record.ContentType, &l.record.Location, &l.record.Body,
		&l.record.ExpiresAt, &l.record.Expired,
	}, func() error {
		into[n-1] = l
		return nil
	})
	return err
}

// Looks are Look for many at once: those that are taken at the same moment share a
// round trip (postgres.Gatherer). A scope is a tenant, and each key is read as the
// tenant of its scope: whoever asks along with others is shown nothing of theirs.
type Looks struct {
	together *postgres.Gatherer[Key, looked]
}

// NewLooks makes them. So many round trips are under way at a time, at most.
func NewLooks(db *postgres.DB, most int) *Looks {
	return &Looks{together: postgres.NewGatherer(most, func(ctx context.Context, keys []Key) ([]looked, error) {
		return lookAsTenants(ctx, db, keys)
	})}
}

// Look is the function of that name, in the company of others.
func (l *Looks) Look(ctx context.Context, key Key) (record Record, found bool, now time.Time, err error) {
	one, err := l.together.Ask(ctx, key)
	if err != nil {
		return Record{}, false, time.Time{}, notLooked(err)
	}
	return one.record, one.found, one.now, nil
}

func lookAsTenants(ctx context.Context, db *postgres.DB, keys []Key) ([]looked, error) {
	var tenants []string
	of := map[string][]int{} // which keys are a tenant's
	for i, key := range keys {
		if of[key.Scope] == nil {
			tenants = append(tenants, key.Scope)
		}
		of[key.Scope] = append(of[key.Scope], i)
	}
	queries := make([]postgres.TenantQuery, len(tenants))
	for i, tenant := range tenants {
		theirs := make([]Key, 0, len(keys))
		for _, at := range of[tenant] {
			theirs = append(theirs, keys[at])
		}
		queries[i] = postgres.TenantQuery{Merchant: tenant, SQL: selectAnswers, Args: asking(theirs)}
	}
	all := make([]looked, len(keys))
	err := db.QueryTenants(ctx, queries, func(i int, rows pgx.Rows) error {
		theirs := make([]looked, len(of[tenants[i]]))
		err := readAnswers(rows, theirs)
		for n, at := range of[tenants[i]] {
			all[at] = theirs[n]
		}
		return err
	})
	return all, err
}
