package restore

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
)

const (
	// insertRecovery goes by a row that no standby and no backup of an earlier history has.
	insertRecovery = `
insert into recoveries (id, history, since, reason)
select id + 1, database_history(), lost_since(), 'history'
  from (select id, history from recoveries order by id desc limit 1) as last_known
 where history <> database_history()
    on conflict (id) do nothing`

	// selectDue also finds what is to be scanned once more: the worker of an old primary may have
	// made payments after the scan. With $1 it does not wait for that time.
	selectDue = `
select coalesce(max(id), 0), coalesce(min(since), 'epoch'), clock_timestamp()
  from recoveries
 where scanned_at is null
    or reason in ('history', 'repair')
       and (scanned_at < detected_at + interval '5 minutes' and clock_timestamp() > detected_at + interval '5 minutes'
            or $1 and detected_at > clock_timestamp() - interval '1 day')`

	insertLost = `
insert into lost_payments (payment_intent, reference, amount, currency, created_at)
select l.*
  from unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::timestamptz[])
       as l(payment_intent, reference, amount, currency, created_at)
 where not exists (
         select
           from ledger_events e
          where e.type like 'payment.started.v%'
            and (e.data ->> 'payment_intent') collate "C" = l.payment_intent)
    on conflict (payment_intent) do nothing`

	// updateScanned names when the scan began.
	updateScanned = `
update recoveries
   set scanned_at = $2
 where id <= $1
   and (scanned_at is null
        or scanned_at < $2 and since >= $3 and reason in ('history', 'repair'))`
)

// pageOfLost is how many payments are stored at a time.
const pageOfLost = 100

// scanJitter keeps most workers from a scan that another one ends meanwhile.
const scanJitter = 2 * time.Second

// List lists the provider's payment intents that were created at since or later. Those of other
// origin have no Reference.
type List func(ctx context.Context, since time.Time) iter.Seq2[stripe.Intent, error]

// Recover records whether the database has another history than before, through a promotion or a
// restore. Then it stores which payments the provider lists and the ledger does not have, since
// the time from which the database may have lost charges. Until it has, no charge creates a
// payment. The provider's list, unlike its search, has everything that was created before.
// Five minutes after a recovery it reads the list once more, which holds up nothing.
//
// Several workers may scan at once, which changes nothing: one that hangs holds up no other.
//
// If we die here: the recovery is not scanned, and the next call begins anew.
// Test: TestRecover.
func Recover(ctx context.Context, log *slog.Logger, db *postgres.DB, list List) error {
	if err := commit(ctx, db, insertRecovery); err != nil {
		return fmt.Errorf("record a recovery: %w", err)
	}
	if due, err := readDue(ctx, db, false); err != nil || due.last == 0 {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(rand.N(scanJitter)): //nolint:gosec // jitter
	}
	return scan(ctx, log, db, list, false)
}

// Rescan is Recover, and reads the list also for the recoveries of the last day that are scanned.
func Rescan(ctx context.Context, log *slog.Logger, db *postgres.DB, list List) error {
	if err := commit(ctx, db, insertRecovery); err != nil {
		return fmt.Errorf("record a recovery: %w", err)
	}
	return scan(ctx, log, db, list, true)
}

func scan(ctx context.Context, log *slog.Logger, db *postgres.DB, list List, again bool) error {
	due, err := readDue(ctx, db, again)
	if err != nil || due.last == 0 { // another worker has just finished
		return err
	}
	log.InfoContext(ctx, "the scan for lost payments begins", "since", due.since)
	var page []stripe.Intent
	var listed int
	var found int64
	store := func() error {
		n, err := storeLost(ctx, db, page)
		listed, found, page = listed+len(page), found+n, page[:0]
		return err
	}
	for p, err := range list(ctx, due.since) {
		if err != nil {
			return fmt.Errorf("scan for lost payments: %w", err)
		}
		if p.Reference == "" {
			continue
		}
		if page = append(page, p); len(page) == pageOfLost {
			if err := store(); err != nil {
				return err
			}
		}
	}
	if err := store(); err != nil {
		return err
	}
	log.InfoContext(ctx, "the scan for lost payments ends", "listed", listed, "found", found)
	return commit(ctx, db, updateScanned, due.last, due.at, due.since)
}

// due is the newest recovery that is to be scanned, and since when all of them are.
type due struct {
	last      int64 // 0: there is none
	since, at time.Time
}

func readDue(ctx context.Context, db *postgres.DB, again bool) (d due, err error) {
	if err := db.QueryRow(ctx, selectDue, again).Scan(&d.last, &d.since, &d.at); err != nil {
		return d, fmt.Errorf("read the recoveries: %w", err)
	}
	return d, nil
}

// storeLost returns how many of a page were lost and not stored before.
func storeLost(ctx context.Context, db *postgres.DB, page []stripe.Intent) (found int64, err error) {
	var intents, references, currencies []string
	var amounts []int64
	var created []time.Time
	for _, p := range page {
		intents, references, currencies = append(intents, p.ID), append(references, p.Reference), append(currencies, p.Currency)
		amounts, created = append(amounts, p.Amount), append(created, p.Created)
	}
	b := &pgx.Batch{}
	b.Queue(insertLost, intents, references, amounts, currencies, created).Exec(func(tag pgconn.CommandTag) error {
		found = tag.RowsAffected()
		return nil
	})
	if err := db.Commit(ctx, b); err != nil {
		return 0, fmt.Errorf("store lost payments: %w", err)
	}
	return found, nil
}

func commit(ctx context.Context, db *postgres.DB, sql string, args ...any) error {
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	if err := db.Commit(ctx, b); err != nil {
		return fmt.Errorf("commit a recovery: %w", err)
	}
	return nil
}
