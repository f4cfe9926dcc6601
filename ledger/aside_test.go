package ledger_test

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// unreadable are events that a program cannot read, each in a charge of its own, and void requests
// that open a charge.
const unreadable = `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), 'ch_type',   1, 'charge.exploded.v1',   1, 'acme', '{}', '{}', now()),
       (gen_random_uuid(), 'ch_schema', 1, 'charge.requested.v2',  1, 'acme', '{}', '{}', now()),
       (gen_random_uuid(), 'ch_step',   1, 'charge.requested.v1',  1, 'acme', '{"steps":["magic"]}', '{}', now()),
       (gen_random_uuid(), 'ch_amount', 1, 'charge.requested.v1',  1, 'acme', '{"amount":1e30}', '{}', now()),
       (gen_random_uuid(), 'ch_none',   1, 'charge.requested.v1',  1, 'acme', '{"amount":0}', '{}', now()),
       (gen_random_uuid(), 'ch_later',  2, 'payment.captured.v1',  1, 'acme', '{"payment_intent":7}', '{}', now())`

// wantListed checks the charges of the live list, and those that are set aside.
func wantListed(t *testing.T, db *postgres.DB, when string, list, aside []string) {
	t.Helper()
	const rows = ` where generation = (select generation from projections where state = 'live') order by 1`
	testrun.Same(t, when+": list", list, testdb.All[string](t, db, `select charge_id from charge_list`+rows))
	testrun.Same(t, when+": set aside", aside, testdb.All[string](t, db, `select charge_id from charges_set_aside`+rows))
	checkBalances(t, db)
}

func TestProject_setsAsideWhatItCannotRead(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	appended(t, db, ledger.New("ch_1"), cause("a"), requested("acme"))
	appended(t, db, ledger.New("ch_later"), cause("a"), requested("acme"))
	project(t, db)
	exec(t, db, unreadable)
	appended(t, db, ledger.New("ch_2"), cause("a"), requested("acme"))

	all := []string{"ch_later", "ch_schema", "ch_step", "ch_type"}
	project(t, db)
	wantListed(t, db, "projected", []string{"ch_1", "ch_2", "ch_later"}, all)
	if reasons := testdb.All[string](t, db, `select reason from charges_set_aside where charge_id = 'ch_type'`); !strings.Contains(reasons[0], `unknown event type`) {
		t.Errorf("the reason is %s", reasons)
	}

	testdb.Must(t, ledger.RetrySetAside(t.Context(), db))
	wantListed(t, db, "read once more", []string{"ch_1", "ch_2", "ch_later"}, all)

	// A rebuild finds the charge that was listed before it could not be read.
	rebuilt, err := ledger.Rebuild(t.Context(), db, nil)
	if err != nil || rebuilt.Different != 1 || !rebuilt.Live {
		t.Errorf("rebuilt %+v: %v", rebuilt, err)
	}
	wantListed(t, db, "rebuilt", []string{"ch_1", "ch_2"}, all)
	if n := testdb.One[int](t, db, `select count(distinct generation) from charges_set_aside`); n != 1 {
		t.Errorf("charges are set aside in %d generations", n)
	}

	// A newer program reads what this one could not.
	exec(t, db, `alter table ledger_events disable trigger ledger_events_append_only`)
	exec(t, db, `update ledger_events set type = 'charge.requested.v1', data = '{"merchant_id":"acme","amount":1,"steps":["payment"]}' where stream_id = 'ch_schema'`)
	exec(t, db, `update ledger_events set data = '{"payment_intent":"pi_7"}' where stream_id = 'ch_later' and version = 2`)
	testdb.Must(t, ledger.RetrySetAside(t.Context(), db))
	wantListed(t, db, "readable", []string{"ch_1", "ch_2", "ch_later", "ch_schema"}, []string{"ch_step", "ch_type"})
}

// TestProject_setsAsideWhatTheDatabaseRefuses: a row that no type, constraint or index can
// hold stops neither its page nor the charges that were set aside after it.
func TestProject_setsAsideWhatTheDatabaseRefuses(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	long, unlisted := requested("acme"), requested("acme")
	for i := range 300 {
		long.OrderID += fmt.Sprintf("%x", sha256.Sum256([]byte{byte(i), byte(i >> 8)})) // an index compresses
	}
	unlisted.OrderID = "unlisted"
	exec(t, db, `alter table charge_list add constraint listed check (order_id <> 'unlisted')`)
	for i, requested := range []domain.ChargeRequested{requested("acme"), long, requested("globex"), unlisted, requested("acme")} {
		appended(t, db, ledger.New(fmt.Sprintf("ch_%d", i)), cause(strconv.Itoa(i)), requested)
	}
	project(t, db)
	testdb.Must(t, ledger.RetrySetAside(t.Context(), db))

	wantListed(t, db, "projected", []string{"ch_0", "ch_2", "ch_4"}, []string{"ch_1", "ch_3"})

	exec(t, db, `alter table charge_list drop constraint listed`)
	testdb.Must(t, ledger.RetrySetAside(t.Context(), db))
	wantListed(t, db, "read once more", []string{"ch_0", "ch_2", "ch_3", "ch_4"}, []string{"ch_1"})
}

// tooLong is a charge with more events than a program can hold, one of 1 MiB each.
const tooLong = `
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
select gen_random_uuid(), 'ch_long', v, 'charge.cancel_requested.v1', 1, 'acme', jsonb_build_object('x', repeat('x', 1048000)), '{}', now()
  from generate_series(1, 17) v`

// TestStreams_thatAreTooLongHoldUpNoOther: a stolen api can make a charge as long as the disk
// permits. A program that read it whole would run out of memory.
func TestStreams_thatAreTooLongHoldUpNoOther(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	exec(t, db, tooLong)
	appended(t, db, ledger.New("ch_1"), cause("a"), requested("acme"))
	project(t, db)
	testdb.Must(t, ledger.RetrySetAside(t.Context(), db))
	testrun.Same(t, "listed", "ch_1", testdb.One[string](t, db, `select charge_id from charge_list where charge_id <> 'ch_long'`))
	testrun.Same(t, "set aside", "ch_long: the events have more than 16777216 bytes",
		testdb.One[string](t, db, `select charge_id || ': ' || reason from charges_set_aside`))
	loader := ledger.NewLoader(db, 1)
	var both sync.WaitGroup
	for id, fails := range map[string]bool{"ch_long": true, "ch_1": false} {
		both.Go(func() {
			for range 5 { // some share a statement
				if _, err := loader(t.Context(), id); (err != nil) != fails || fails && !strings.Contains(err.Error(), "more than") {
					t.Errorf("%s is loaded: %v", id, err)
				}
			}
		})
	}
	both.Wait()
	if rebuilt, err := ledger.Rebuild(t.Context(), db, nil); err != nil || !rebuilt.Live {
		t.Errorf("rebuilt %+v: %v", rebuilt, err)
	}
}

// TestRetrySetAside_cutInItsCommit: the row and the mark change together, and the next call does
// what is left.
func TestRetrySetAside_cutInItsCommit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		side         failpoint.Side
		listed, left int
	}{{failpoint.Before, 1, 1}, {failpoint.After, 2, 0}} {
		t.Run(string(test.side), func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			direct, proxy := testdb.Connect(t, url), failpoint.StartCutter(t, url)
			exec(t, direct, `alter table charge_list add constraint listed check (charge_id <> 'ch_001')`)
			appendTo(t, direct, newStreams("ch_", 2), requested("acme"))
			project(t, direct)
			exec(t, direct, `alter table charge_list drop constraint listed`)
			wants := func(when string, listed, left int) {
				t.Helper()
				const counts = `select format('%s listed, %s set aside', (select count(*) from charge_list), (select count(*) from charges_set_aside))`
				if got, want := testdb.One[string](t, direct, counts), fmt.Sprintf("%d listed, %d set aside", listed, left); got != want {
					t.Errorf("%s: %s, want %s", when, got, want)
				}
				checkBalances(t, direct)
			}
			wants("projected", 1, 1)
			dying := testdb.Connect(t, proxy.URL())
			proxy.ArmLast(test.side, 4) // nothing else has so many statements
			if err := ledger.RetrySetAside(t.Context(), dying); err == nil || proxy.Cuts() != 1 {
				t.Errorf("cut %d times: %v", proxy.Cuts(), err)
			}
			wants("cut", test.listed, test.left)
			testdb.Must(t, ledger.RetrySetAside(t.Context(), direct))
			wants("called again", 2, 0)
		})
	}
}
