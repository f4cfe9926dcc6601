package idempotency

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/postgres"
)

// DoAll does each of many inputs once, and returns their results in the same
// order. One look finds those that are known. Each of the others is a commit of
// its own, so one that fails, or panics, fails alone: its error is in its result.
// The same input twice in one call is done once.
//
// If we die here: some inputs are done and the others are not. The same call does
// the rest. Test: TestDoAll/what_a_call_left_undone_is_done_by_the_next.
func (o Once[In, Out]) DoAll(ctx context.Context, ins []In) []Result[Out] {
	results := make([]Result[Out], len(ins))
	asks := make([]asked[In], len(ins))
	var keys []string
	for i, in := range ins {
		results[i] = o.alone("", func() (result Result[Out]) {
			asks[i], result.Err = o.ask(in)
			return result
		})
		if results[i].Err == nil {
			keys = append(keys, asks[i].key.Value)
		}
	}
	if len(keys) == 0 {
		return results
	}
	known, now, err := lookAll(ctx, o.Receiver.DB, o.Scope, o.Operation, keys)
	var work errgroup.Group
	work.SetLimit(o.concurrency())
	for i, ask := range asks {
		if results[i].Err == nil && err != nil {
			results[i] = Result[Out]{Key: ask.key.Value, Err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
		}
		if results[i].Err != nil {
			continue
		}
		if record, ok := known[ask.key.Value]; ok {
			results[i] = o.alone(ask.key.Value, func() Result[Out] {
				return o.do(ask, func(Decide) (Outcome, error) { return replay(record, ask.request, func(Record) {}) })
			})
			continue
		}
		results[i] = Result[Out]{Key: ask.key.Value, Err: errNoReturn} // until it returns
		work.Go(func() error {
			results[i] = o.alone(ask.key.Value, func() Result[Out] { return o.begin(ctx, ask, now) })
			return nil
		})
	}
	_ = work.Wait() // each has its error in its result
	return results
}

// errNoReturn is the error of a work that ended its goroutine.
var errNoReturn = errors.New("the work did not return")

// alone makes a panic end in the result of the one input that it comes from.
func (o Once[In, Out]) alone(key string, do func() Result[Out]) (result Result[Out]) {
	defer func() {
		if cause := recover(); cause != nil {
			result = Result[Out]{Key: key, Err: fmt.Errorf("panic in %s: %v\n%s", o.Operation, cause, debug.Stack())}
		}
	}()
	return do()
}

// begin is do of a key that was free at a time.
func (o Once[In, Out]) begin(ctx context.Context, ask asked[In], free time.Time) Result[Out] {
	return o.do(ask, func(decide Decide) (Outcome, error) {
		if err := context.Cause(ctx); err != nil {
			return Outcome{}, fmt.Errorf("%w: %w", ErrUnavailable, err) // not begun
		}
		return o.Receiver.receive(ctx, ask.key, ask.request, decide, func(Record) {}, free)
	})
}

func (o Once[In, Out]) concurrency() int {
	if o.Concurrency <= 0 {
		return 8
	}
	return o.Concurrency
}

// The offset keeps the subquery a probe for each key. As a condition on the place of
// the keys it was planned, where there were few, to read all that a scope has.
const selectAnswers = `
select c.now,
       coalesce(k.key, '')                          as key,
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
  left join (unnest($3::text[]) as asked(value)
             cross join lateral (
                   select key, fingerprint, request, status_code, content_type, location, body, expires_at
                     from idempotency_keys
                    where scope = $1
                      and operation = $2
                      and key = asked.value
                   offset 0) as k)
    on true`

// lookAll is Look for many keys of one place: the records of those that are
// known, by key, and the database's time.
func lookAll(ctx context.Context, q postgres.Querier, scope, operation string, keys []string) (known map[string]Record, now time.Time, err error) {
	rows, err := q.Query(ctx, selectAnswers, scope, operation, keys)
	if err != nil {
		return nil, now, fmt.Errorf("look up %d idempotency keys: %w", len(keys), err)
	}
	known = map[string]Record{}
	var key string
	var r Record
	_, err = pgx.ForEachRow(rows, []any{
		&now, &key, &r.Fingerprint, &r.Canonical, &r.StatusCode, &r.ContentType,
		&r.Location, &r.Body, &r.ExpiresAt, &r.Expired,
	}, func() error {
		known[key] = r // also the row that only brings the time: no key is empty
		return nil
	})
	if err != nil {
		return nil, now, fmt.Errorf("look up %d idempotency keys: %w", len(keys), err)
	}
	return known, now, nil
}
