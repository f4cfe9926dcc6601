package restore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
)

// TestRecover scans as a worker, whose rights suffice, after what a promotion, a restore or a
// crash leaves in the tables.
func TestRecover(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	worker := testdb.As(t, db, postgres.RoleWorker)
	testdb.Exec(t, db.Pool(), `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at, recorded_at)
values (gen_random_uuid(), 'ch_1', 1, 'payment.started.v1', 1, 'acme', '{"payment_intent":"pi_000"}', '{}', now(), '2026-01-01 12:00+00')`)
	var lines bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&lines, nil))
	const listed = 150
	killed := errors.New("killed")
	var asked []time.Time
	list := func(ends int) func(context.Context, time.Time) iter.Seq2[stripe.Intent, error] {
		return func(_ context.Context, since time.Time) iter.Seq2[stripe.Intent, error] {
			asked = append(asked, since.UTC())
			return func(yield func(stripe.Intent, error) bool) {
				for i := range listed {
					if i == ends {
						yield(stripe.Intent{}, killed)
						return
					}
					if !yield(stripe.Intent{ID: "foreign", Created: time.Now()}, nil) || !yield(stripe.Intent{ID: fmt.Sprintf("pi_%03d", i), Reference: "ref", Amount: 1, Currency: "EUR", Created: time.Now()}, nil) {
						return
					}
				}
			}
		}
	}
	before := time.Date(2026, 1, 1, 11, 45, 0, 0, time.UTC)
	for _, step := range []struct {
		name, sql string
		ends      int
		err       error
		want      string // recoveries, those that are not scanned, and lost payments
		scans     int
	}{
		{"a new database", `select`, listed, nil, "1 0 0", 0},
		{"another history, as after a promotion, and the worker dies half-way", `update recoveries set history = 'another'`, 120, killed, "2 1 99", 1},
		{"the next worker", `select`, listed, nil, "2 0 149", 1},
		{"later", `select`, listed, nil, "2 0 149", 0},
		{"a repair", `repair`, listed, nil, "3 0 149", 1},
		{"five minutes later", `update recoveries set detected_at = detected_at - interval '5 minutes', scanned_at = scanned_at - interval '5 minutes'`, listed, nil, "3 0 149", 1},
		{"an hour later", `update recoveries set detected_at = detected_at - interval '1 hour', scanned_at = scanned_at - interval '1 hour'`, listed, nil, "3 0 149", 0},
		{"an operator adopts", `rescan`, listed, nil, "3 0 149", 1},
		{"the next operator", `rescan`, listed, nil, "3 0 149", 1},
	} {
		var err error
		scan := restore.Recover
		switch asked = nil; step.sql {
		case "repair":
			_, err = restore.Repair(t.Context(), db)
		case "rescan":
			scan = restore.Rescan
		default:
			testdb.Exec(t, db.Pool(), step.sql)
		}
		testdb.Must(t, err)
		if err := scan(t.Context(), log, worker, list(step.ends)); !errors.Is(err, step.err) {
			t.Errorf("%s: %v", step.name, err)
		}
		got := testdb.One[string](t, db.Pool(), `
select concat_ws(' ', count(*), count(*) filter (where scanned_at is null), (select count(*) from lost_payments)) from recoveries`)
		if got != step.want || len(asked) != step.scans || step.scans > 0 && !asked[0].Equal(before) {
			t.Errorf("%s: %s with scans since %v, want %s with %d scans since %s", step.name, got, asked, step.want, step.scans, before)
		}
	}
	if got := lines.String(); strings.Count(got, `scan for lost payments begins`) != 6 || !strings.Contains(got, `"listed":150,"found":50}`) {
		t.Errorf("the log says\n%s", got)
	}
}

// TestRecover_since is about the time from which the provider's list is read.
func TestRecover_since(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	worker := testdb.As(t, db, postgres.RoleWorker)
	event := func(stream string, version int, kind, at string) string {
		return fmt.Sprintf(`
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at, recorded_at)
values (gen_random_uuid(), '%[1]s', %[2]d, '%[3]s', 1, 'acme', '{"payment_intent":"pi_%[1]s"}', '{}', now(), '%[4]s');`, stream, version, kind, at)
	}
	open := func(stream, at, status string) string {
		return event(stream, 1, "charge.requested.v1", at) + fmt.Sprintf(`
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status)
values ('fulfillment', '%[1]s', '%[1]s', 'charge.requested.v1', '', '{}', '', '%[2]s')`, stream, status)
	}
	day := func(n int) time.Time { return time.Date(2026, 1, n, 11, 45, 0, 0, time.UTC) }
	for _, step := range []struct {
		name, sql string
		want      time.Time
	}{
		{"no payment", `update recoveries set detected_at = '2026-01-01 12:00+00'`, day(1)},
		{"a clock that was ahead", event("ch_0", 1, "payment.started.v1", "9000-01-01"), time.Now().Add(-15 * time.Minute)},
		{"the newest payment", event("ch_9", 1, "charge.requested.v1", "2026-01-01") + event("ch_9", 2, "payment.started.v1", "2026-01-09 12:00+00"), day(9)},
		{"an older charge whose message is dead", open("ch_8", "2026-01-08 12:00+00", "dead"), day(8)},
		{"an older charge that is open", open("ch_7", "2026-01-07 12:00+00", "pending"), day(7)},
		{"its payment is known", event("ch_7", 2, "payment.started.v1", "2026-01-09 12:00+00"), day(8)},
		{"it has failed", event("ch_8", 2, "charge.failed.v1", "2026-01-09 12:00+00"), day(9)},
	} {
		for _, sql := range strings.SplitAfter(step.sql, ";") {
			testdb.Exec(t, db.Pool(), sql)
		}
		if got := testdb.One[time.Time](t, worker.Pool(), `select lost_since()`); got.Sub(step.want).Abs() > time.Minute {
			t.Errorf("%s: since %s, want %s", step.name, got, step.want)
		}
	}
}

// TestRecover_besideAWorkerThatHangs: a scan that stands still keeps no other worker from one.
func TestRecover_besideAWorkerThatHangs(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	testdb.Exec(t, db.Pool(), `update recoveries set history = 'another'`)
	log := slog.New(slog.DiscardHandler)
	hangs, finish := make(chan struct{}), make(chan struct{})
	var g errgroup.Group
	g.Go(func() error {
		return restore.Recover(t.Context(), log, db, func(context.Context, time.Time) iter.Seq2[stripe.Intent, error] {
			close(hangs)
			<-finish
			return func(func(stripe.Intent, error) bool) {}
		})
	})
	<-hangs
	testdb.Must(t, restore.Recover(t.Context(), log, db, func(context.Context, time.Time) iter.Seq2[stripe.Intent, error] {
		return func(func(stripe.Intent, error) bool) {}
	}))
	if n := testdb.One[int](t, db.Pool(), `select count(*)::int from recoveries where scanned_at is not null`); n != 2 {
		t.Errorf("%d recoveries are recorded and scanned", n)
	}
	close(finish)
	testdb.Must(t, g.Wait())
}
