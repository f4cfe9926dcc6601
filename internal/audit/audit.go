// Package audit reads all tables and reports what they say: whether every invariant of payonce holds (Run,
// and Continue for what is new), whether the provider's lists agree (Reconcile), what happened to one
// charge (ReadTimeline), and what operators did (ListActions). It writes nothing but its own results and
// repairs nothing. Of the packages that it audits it asks the domain's rules and the readers of the ledger
// alone; the checks of money and of messages are statements that use neither.
//
// # Guarantees
//
//   - Run makes each check in one snapshot, so traffic does not make a check fail. It
//     holds no snapshot longer than a check or a page of streams, and takes no lock that a
//     write waits for.
//   - A check covers every case that is stored: it is over 0 cases only where there is
//     none. An open charge or refund is no violation. A charge or refund without an outcome
//     and without a message that could bring one is.
//   - ReadTimeline shows one snapshot. An event that this version cannot read is shown as
//     unreadable, and of those behind it only their type, time and cause. A merchant's description,
//     metadata and reasons and the payloads of messages are left out.
//
// # Limits
//
//   - Continue makes the checks that the rows of one charge can show, of charges that have new
//     events. Run reads whole tables, about 0.2 ms per charge, and each of its statements must end
//     within the pool's statement time-out. Only Reconcile can show that the provider
//     took the money.
//   - A timeline is not complete: it has no outbox rows, retention removes inbox rows, the replay of a
//     key leaves no trace, and a dead letter has no time. It reads the keys
//     whole, the inbox from the charge's first message on and, for a refund's ID, all events.
//
// Tables: audit_results and audit_progress, which the worker's metrics report, and operator_actions.
//
// No library knows what payonce promises, and what judges the other packages is a part of none of them.
package audit

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
)

//go:embed facts.sql
var facts string

//go:embed checks.sql
var checksSQL string

// Report is the result of an audit.
type Report struct {
	OK     bool    `json:"ok"` // no check was violated
	Checks []Check `json:"checks"`
}

// Check is one invariant, the number of its cases and of those that violate it.
type Check struct {
	Name     string   `json:"name"`
	Checked  int      `json:"checked"`
	Violated int      `json:"violated"`
	Examples []string `json:"examples"` // of violations, at most 5, never nil
}

const maxExamples = 5

// Add adds checks to the report, which stays OK only if they are.
func (r *Report) Add(checks ...Check) {
	r.Checks = append(r.Checks, checks...)
	r.OK = !slices.ContainsFunc(r.Checks, func(c Check) bool { return c.Violated > 0 })
}

func newCheck(name string) Check { return Check{Name: name, Examples: []string{}} }

// see counts one case. An empty complaint means that the invariant holds.
func (c *Check) see(complaint string) {
	c.Checked++
	if complaint == "" {
		return
	}
	c.Violated++
	if len(c.Examples) < maxExamples {
		c.Examples = append(c.Examples, complaint)
	}
}

// checkEach counts cases. complain returns "" where the invariant holds.
func checkEach[T any](name string, cases []T, complain func(T) string) Check {
	check := newCheck(name)
	for _, one := range cases {
		check.see(complain(one))
	}
	return check
}

// invariant is a statement about the rows, which one query checks over the facts.
type invariant struct {
	name  string
	whole bool   // reads whole tables; else the rows of one charge show it, so an increment checks it too
	query string // a row for each case: a complaint where it is violated, else null
}

// invariants are those of checks.sql.
var invariants = readInvariants(checksSQL)

func readInvariants(text string) (all []invariant) {
	for _, check := range strings.Split(text, "\n-- check: ")[1:] {
		name, query, _ := strings.Cut(check, "\n")
		all = append(all, invariant{name, strings.HasPrefix(query, "-- whole tables\n"), query})
	}
	return all
}

// Database is what Run reads, a pool or a transaction as the owner of the tables or as the console.
type Database interface {
	postgres.Querier
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Run checks every invariant that the tables can show, with one connection. While a snapshot
// is open, PostgreSQL removes nothing that was deleted since, and the tables that are
// written most become slow: so each check, and each page of streams, has snapshots of its own.
// An error means that the audit could not be finished; violations are in the report.
func Run(ctx context.Context, db Database) (Report, error) {
	streams := newStreamChecks()
	if err := streams.seeAll(ctx, db); err != nil {
		return Report{}, err
	}
	var report Report
	report.Add(streams.checks()...)
	for check := range slices.Chunk(invariants, 1) {
		found, err := checkRows(ctx, db, nil, check)
		if err != nil {
			return Report{}, err
		}
		report.Add(found...)
	}
	return report, nil
}

const countCases = `
-- audit.countCases
select '%s' as name,
       count(*) as checked,
       count(complaint) as violated,
       coalesce(array_agg(left(complaint, 500) order by complaint) filter (where complaint is not null and place <= $1), '{}') as examples
  from (
       select complaint,
              count(complaint) over (rows unbounded preceding) as place
         from (%s) as cases(complaint)) placed`

// checkRows checks invariants in one statement, over the tables, or over the rows of charges where they are named.
func checkRows(ctx context.Context, db Database, charges []string, invariants []invariant) ([]Check, error) {
	settings, with, args, counts := postgres.ReadWholeTables, "with "+facts, []any{maxExamples}, make([]string, len(invariants))
	for i, p := range invariants {
		counts[i] = fmt.Sprintf(countCases, p.name, p.query)
	}
	if charges != nil {
		settings, with, args = postgres.JoinByHash, "with "+rowsOfCharges+facts, append(args, charges, domain.Topic)
	}
	return collectUnder[Check](ctx, db, settings, "rows that show whether "+invariants[0].name, with+strings.Join(counts, "\nunion all"), args...)
}

// collectUnder is collect under settings of the planner, which a statement makes.
func collectUnder[T any](ctx context.Context, db Database, settings, what, sql string, args ...any) (found []T, err error) {
	b := &pgx.Batch{}
	b.Queue(settings)
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByName[T])
		return err
	})
	if err := db.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return found, nil
}

// collect returns the rows of a query. what completes "read …" in the error.
func collect[T any](ctx context.Context, q postgres.Querier, what, sql string, args ...any) ([]T, error) {
	rows, _ := q.Query(ctx, sql, args...) // CollectRows returns its error
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return found, nil
}

// What an audit covered.
const (
	ScopeTables   = "tables"   // the tables
	ScopeProvider = "provider" // the reconciliation with the provider
)

const upsertResult = `
-- audit.upsertResult
insert into audit_results
       (scope, checked, violated)
values ($1, $2, $3)
on conflict (scope) do update
   set checked     = excluded.checked,
       violated    = excluded.violated,
       finished_at = excluded.finished_at`

// Record queues the result of a finished audit, in place of the last one of its scope. The
// worker reports it as a metric; nothing else depends on it.
func Record(b *pgx.Batch, scope string, checks ...Check) {
	checked, violated := sum(checks)
	b.Queue(upsertResult, scope, checked, violated)
}

func sum(checks []Check) (checked, violated int) {
	for _, c := range checks {
		checked += c.Checked
		violated += c.Violated
	}
	return checked, violated
}
