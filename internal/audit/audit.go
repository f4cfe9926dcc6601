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

// Run checks every promise that our own tables can show, all of them in one
// read-only snapshot. It holds one connection and no lock that a write waits
// for. An error means that the audit could not be finished; what is violated is
// in the report.
//
// Of a tenant each check is over what is the merchant's. Between merchants it
// sees nothing: that two of them have captured one payment intent, or a message
// of no charge at all, is found by the audit of everything.
func Run(ctx context.Context, db Snapshots) (Report, error) {
	tx, err := db.Snapshot(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("open the audit: %w", err)
	}
	// Nothing was written, so there is nothing to lose here.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	var report Report
	checks, err := checkStreams(ctx, tx)
	if err != nil {
		return Report{}, err
	}
	report.Add(checks...)
	if _, err := tx.Exec(ctx, planForWholeTables); err != nil {
		return Report{}, fmt.Errorf("set up the audit's snapshot: %w", err)
	}
	for _, p := range promises() {
		check, err := p.check(ctx, tx)
		if err != nil {
			return Report{}, err
		}
		report.Add(check)
	}
	return report, nil
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
