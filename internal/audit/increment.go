package audit

import (
	"context"
	_ "embed"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger/books"
)

//go:embed increment.sql
var rowsOfCharges string

// checkCharges makes every check that the rows of one charge can show, in a few statements and the
// more the more events the charges have.
func checkCharges(ctx context.Context, db Database, charges []string) ([]Check, error) {
	streams := newStreamChecks()
	if err := streams.see(ctx, db, charges); err != nil {
		return nil, err
	}
	rows, err := checkRows(ctx, db, charges, slices.DeleteFunc(slices.Clone(invariants), func(p invariant) bool { return p.whole }))
	return append(streams.checks(), rows...), err
}

const incrementEvents = 1000

const addFound = `
-- audit.addFound
update audit_progress
   set checked  = checked + $1,
       violated = violated + $2`

// Continue audits the next charges that have new events, those of at most 1,000 events, and returns
// the checks that they violate, and whether there may be more. Of several workers that call it at
// once one audits.
//
// If we die here: what was found and how far the audit is are one commit, so each increment is
// counted once.
// Test: ledger/books TestFollow_storesEachEventOnce.
func Continue(ctx context.Context, db *postgres.DB) (violated []Check, more bool, err error) {
	n, err := books.Follow(ctx, db, "audit", incrementEvents, func(ctx context.Context, tx pgx.Tx, events []books.Followed) error {
		charges := make([]string, len(events))
		for i, e := range events {
			charges[i] = e.StreamID
		}
		slices.Sort(charges)
		if violated, err = checkCharges(ctx, tx, slices.Compact(charges)); err != nil {
			return err
		}
		checked, broken := sum(violated)
		_, err = tx.Exec(ctx, addFound, checked, broken)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return slices.DeleteFunc(violated, func(c Check) bool { return c.Violated == 0 }), n == incrementEvents, nil
}

const selectFound = `
-- audit.selectFound
select violated, violated - superseded from audit_progress`

// Found returns how many violations the increments have found, and how many of them no audit of the tables covers.
func Found(ctx context.Context, q postgres.Querier) (all, left int, err error) {
	if err := q.QueryRow(ctx, selectFound).Scan(&all, &left); err != nil {
		return 0, 0, fmt.Errorf("read what the workers have found: %w", err)
	}
	return all, left, nil
}

const updateSuperseded = `
-- audit.updateSuperseded
update audit_progress
   set superseded = greatest(superseded, $1)`

// Supersede queues that a finished audit of the tables covers the violations that the increments had
// found when it began: what is still violated is in the audit's own result.
func Supersede(b *pgx.Batch, found int) { b.Queue(updateSuperseded, found) }
