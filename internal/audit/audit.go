package audit

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Every check reads its tables whole, so a hash of one side is right whatever the
// planner believes. On tables that nobody has analyzed yet it believes in a few
// rows, and would compare each row with all others. What it cannot avoid looks so
// dear to it then that it would compile the statement first.
const planForWholeTables = `
select set_config('enable_seqscan', 'on', true),
       set_config('enable_nestloop', 'off', true),
       set_config('jit', 'off', true)`

// Snapshots are what an audit looks at: a *postgres.DB as its owner for all that
// there is, a *postgres.Tenant for what one merchant has of it.
type Snapshots interface {
	Snapshot(ctx context.Context) (pgx.Tx, error)
}

// Run checks every promise that our own tables can show. Each check is made in one
// read-only snapshot, and the streams are read in pages, each in a snapshot of its own:
// while a snapshot is open, PostgreSQL removes nothing that was deleted since, and the
// tables that are written most become slow. Run holds one connection and no lock that a
// write waits for. An error means that the audit could not be finished; what is violated
// is in the report.
//
// Of a tenant each check is over what is the merchant's. Between merchants it
// sees nothing: that two of them have captured one payment intent, or a message
// of no charge at all, is found by the audit of everything.
func Run(ctx context.Context, db Snapshots) (Report, error) {
	var report Report
	checks, err := checkStreams(ctx, db)
	if err != nil {
		return Report{}, err
	}
	report.Add(checks...)
	for _, p := range promises() {
		err := look(ctx, db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, planForWholeTables); err != nil {
				return fmt.Errorf("set up the audit's snapshot: %w", err)
			}
			check, err := p.check(ctx, tx)
			report.Add(check)
			return err
		})
		if err != nil {
			return Report{}, err
		}
	}
	return report, nil
}

// look reads in a snapshot of its own.
func look(ctx context.Context, db Snapshots, read func(pgx.Tx) error) error {
	tx, err := db.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("open a snapshot of the audit: %w", err)
	}
	// Nothing was written, so there is nothing to lose here.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	return read(tx)
}

// promise is a check that one statement makes. Its cases are a query of one
// column with a row per case: null where the promise holds, else the complaint.
type promise struct{ name, cases string }

func promises() []promise {
	return slices.Concat(
		keyPromises(),
		chargePromises(),
		refundPromises(),
		bookPromises(),
		projectionPromises(),
		stockPromises(),
		messagePromises(),
	)
}

const countCases = `
select count(*),
       count(complaint),
       coalesce((array_agg(complaint) filter (where complaint is not null))[1:$1], '{}')
  from (%s
       ) as cases(complaint)`

func (p promise) check(ctx context.Context, q postgres.Querier) (Check, error) {
	check := newCheck(p.name)
	err := q.QueryRow(ctx, fmt.Sprintf(countCases, p.cases), maxExamples).
		Scan(&check.Checked, &check.Violated, &check.Examples)
	if err != nil {
		return check, fmt.Errorf("check that %s: %w", p.name, err)
	}
	slices.Sort(check.Examples)
	return check, nil
}
