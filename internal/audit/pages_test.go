package audit_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
)

// streams makes n streams of so many events, none of which can be read; the last
// stream has 2,500 events and a gap.
const streams = `
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_' || lpad(n::text, 4, '0'), v, 'none', 1, 'acme', '{}', '{}', now()
  from generate_series(1, %d) n,
       generate_series(1, %d) v;
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_long', v, 'none', 1, 'acme', '{}', '{}', now()
  from generate_series(1, 2501) v
 where v <> 2000`

// The ledger is read in pages of some 1,000 events. Each stream is seen once and whole,
// also one that is longer than a page.
func TestRun_readsTheLedgerByPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(breakable)
	before := w.audit()
	const n = 700
	w.exec(fmt.Sprintf(streams, n, 3))
	after := w.audit()
	for name, violated := range map[string]int64{"streams have no gap": 1, "streams are legal": n + 1} {
		was, is := named(t, before, name), named(t, after, name)
		if is.Checked-was.Checked != n+1 || is.Violated-was.Violated != violated {
			t.Errorf("%s: %d streams more, %d violated more; want %d and %d", name, is.Checked-was.Checked, is.Violated-was.Violated, n+1, violated)
		}
		if len(is.Examples) != int(min(violated, 5)) {
			t.Errorf("%s: %d examples", name, len(is.Examples))
		}
	}
}

// snapshots looks, whenever one is opened, whether another one is open.
type snapshots struct {
	*postgres.DB

	t      *testing.T
	opened int
}

func (s *snapshots) Snapshot(ctx context.Context) (pgx.Tx, error) {
	s.opened++
	var open int
	err := s.QueryRow(ctx, `
select count(*)
  from pg_stat_activity
 where datname = current_database()
   and pid <> pg_backend_pid()
   and backend_type = 'client backend'
   and (backend_xmin is not null or state like 'idle in transaction%')`).Scan(&open)
	if err != nil || open != 0 {
		s.t.Errorf("beside snapshot %d of the audit %d are open, %v", s.opened, open, err)
	}
	return s.DB.Snapshot(ctx)
}

// No snapshot is held for longer than a check or a page.
func TestRun_holdsNoSnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(breakable)
	w.exec(fmt.Sprintf(streams, 700, 3))
	looking := &snapshots{DB: w.db, t: t}
	report, err := audit.Run(t.Context(), looking)
	if err != nil {
		t.Fatal(err)
	}
	// A page for each 1,000 events, two for the long stream's neighbours, and the end.
	if least := len(report.Checks) - 4 + 4; looking.opened < least {
		t.Errorf("%d snapshots, want %d at least", looking.opened, least)
	}
}
