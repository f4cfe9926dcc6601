package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// maxExamples bounds the differences that are told one by one.
const maxExamples = 5

// In the order of bytes, in which Go compares too.
const selectListedDigests = `
select 'charge ' || charge_id as key,
       sha256(convert_to(row(merchant_id, order_id, status, created_at, version, view::text)::text, 'UTF8')) as digest,
       format('%s, %s events', status, version) as says
  from charge_list
 where generation = $1
 order by charge_id collate "C"`

const selectBalanceDigests = `
select 'account ' || account || ' of ' || merchant_id as key,
       sha256(convert_to(row(debits, credits)::text, 'UTF8')) as digest,
       format('%s − %s', debits, credits) as says
  from account_balances
 where generation = $1
 order by ('account ' || account || ' of ' || merchant_id) collate "C"`

// compare holds the live projections against the new ones, all rows of both at
// one checkpoint: that of the live ones in a snapshot. It is kept open while the
// new ones are folded up to the same checkpoint, and is read then. It holds no
// lock, and has no transaction id that would hold back readers of the log.
func (r *rebuild) compare(ctx context.Context) error {
	before, live, err := liveSnapshot(ctx, r.db)
	if err != nil {
		return err
	}
	// Nothing is written in either, so there is nothing to lose.
	defer func() { _ = before.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := r.foldTo(ctx, live); err != nil {
		return err
	}
	after, err := r.db.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = after.Rollback(context.WithoutCancel(ctx)) }()
	for _, part := range []struct {
		sql      string
		compared *int64
	}{{selectListedDigests, &r.found.Charges}, {selectBalanceDigests, &r.found.Balances}} {
		old, err := digests(ctx, before, part.sql, live.Generation)
		if err != nil {
			return err
		}
		anew, err := digests(ctx, after, part.sql, r.at.Generation)
		if err != nil {
			old.rows.Close()
			return err
		}
		n, err := r.merge(old, anew)
		if err != nil {
			return err
		}
		*part.compared = n
	}
	return nil
}

const selectLiveCheckpoint = `
select generation,
       txid,
       position,
       highest,
       batch
  from projections
 where state = 'live'`

// liveSnapshot is a snapshot, and where the live projections stand in it.
func liveSnapshot(ctx context.Context, db *postgres.DB) (pgx.Tx, checkpoint, error) {
	tx, err := db.Snapshot(ctx)
	if err != nil {
		return nil, checkpoint{}, err
	}
	rows, err := tx.Query(ctx, selectLiveCheckpoint)
	if err == nil {
		var live checkpoint
		if live, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[checkpoint]); err == nil {
			return tx, live, nil
		}
	}
	return nil, checkpoint{}, errors.Join(fmt.Errorf("look at the projections: %w", err), tx.Rollback(context.WithoutCancel(ctx)))
}

// feed is the rows of one side, one after another.
type feed struct {
	rows   pgx.Rows
	more   bool
	key    string
	digest []byte
	says   string
}

func digests(ctx context.Context, q postgres.Querier, sql string, generation int64) (*feed, error) {
	rows, err := q.Query(ctx, sql, generation)
	if err != nil {
		return nil, fmt.Errorf("read projections to compare them: %w", err)
	}
	return &feed{rows: rows}, nil
}

func (f *feed) next() error {
	if f.more = f.rows.Next(); f.more {
		return f.rows.Scan(&f.key, &f.digest, &f.says)
	}
	return f.rows.Err()
}

// merge walks both sides in their order. It counts the rows that are on either.
func (r *rebuild) merge(old, anew *feed) (n int64, err error) {
	defer old.rows.Close()
	defer anew.rows.Close()
	if err := errors.Join(old.next(), anew.next()); err != nil {
		return 0, fmt.Errorf("compare projections: %w", err)
	}
	for old.more || anew.more {
		n++
		var step error
		switch {
		case !anew.more || old.more && old.key < anew.key:
			r.differs("%s: live says %s; the ledger knows nothing of it", old.key, old.says)
			step = old.next()
		case !old.more || anew.key < old.key:
			r.differs("%s: not among the live ones; the ledger says %s", anew.key, anew.says)
			step = anew.next()
		default:
			if string(old.digest) != string(anew.digest) {
				r.differs("%s: live says %s; the ledger says %s", old.key, old.says, anew.says)
			}
			step = errors.Join(old.next(), anew.next())
		}
		if step != nil {
			return n, fmt.Errorf("compare projections: %w", step)
		}
	}
	return n, nil
}

func (r *rebuild) differs(format string, a ...any) {
	r.found.Different++
	if len(r.found.Examples) < maxExamples {
		r.found.Examples = append(r.found.Examples, fmt.Sprintf(format, a...))
	}
}
