package main

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestRun_withoutItsStandby sends more charges than the api has connections while no standby confirms
// a commit: reads are answered, /readyz says why charges are not, and each charge is accepted once.
// idempotency.TestPromises_withoutTheStandby has the answers of such a request.
func TestRun_withoutItsStandby(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it starts a server with a standby")
	db, server := database(t)
	standby := testdb.StandbyOf(t, server, "service")
	p := testrun.Start(t, run, environ(server.URL("service"), "DATABASE_CONNECTIONS", "5"))
	first := send(t, p, "key-first")

	standby.Leaves(t)
	var all sync.WaitGroup
	const keys = 12
	for n := range keys {
		all.Go(func() {
			key := "key-" + strconv.Itoa(n)
			testrun.True(t, key+" is accepted", func() bool {
				got := sendBody(t, p, key, strings.Replace(charge, "order-1", "order-"+key, 1))
				if got.Status != http.StatusAccepted && (!strings.Contains(got.Body, `"retry_with":"same-key"`) || got.Header.Get("Retry-After") == "") {
					t.Errorf("a charge is answered %v", got)
				}
				return got.Status == http.StatusAccepted
			})
		})
	}
	testrun.Progress(t, "/readyz says why", func() (seen string, done bool) {
		got := p.Get(t, "/readyz")
		return got.Body, got.Status == http.StatusServiceUnavailable && strings.Contains(got.Body, "standby")
	})
	all.Go(func() {
		testrun.True(t, "the replay is the first answer", func() bool { return send(t, p, "key-first").Body == first.Body })
	})
	for _, path := range []string{first.Header.Get("Location"), "/v1/charges", "/v1/balances"} {
		if got := read(t, p, path); got.Status != http.StatusOK {
			t.Errorf("%s is answered %v", path, got)
		}
	}
	if n := testdb.One[int](t, standby, `select count(*) from pg_stat_activity where wait_event = 'SyncRep' and datname = current_database()`); n < 1 || n > 3 {
		t.Errorf("%d sessions of the server wait, want 3 at most: 2 in commits and 1 in the read of keys", n)
	}

	standby.Returns(t)
	testrun.True(t, "the api is ready", func() bool { return p.Get(t, "/readyz").Status == http.StatusOK })
	all.Wait()
	if n := testdb.One[int](t, db, `select count(*) from outbox`); n != 1+keys {
		t.Errorf("%d messages were committed, want %d", n, 1+keys)
	}
}

// insertWaitsForGate lets each insert into the outbox wait until gate has a row.
const insertWaitsForGate = `
create table gate (open int);
create function wait_for_gate() returns trigger language plpgsql security definer as $$
begin
  while not exists (select from public.gate) loop
    perform pg_sleep(0.01);
  end loop;
  return new;
end $$;
create trigger wait_for_gate before insert on outbox for each row execute function wait_for_gate()`

// TestRun_ringsForTheLastCommit commits a charge while the api drains.
func TestRun_ringsForTheLastCommit(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it starts a server")
	db, server := database(t)
	listener := testdb.Session(t, server.URL("service"))
	testdb.Exec(t, listener, `listen payonce_due`)
	p := testrun.Start(t, run, environ(server.URL("service")))
	testdb.Exec(t, db.Pool(), insertWaitsForGate, pgx.QueryExecModeSimpleProtocol)
	accepted := make(chan testrun.Response, 1)
	go func() { accepted <- sendBody(t, p, "key-last", charge) }()
	testrun.Row(t, db, `select exists (select from pg_stat_activity where wait_event = 'PgSleep')`)
	stopped := make(chan struct{})
	go func() { defer close(stopped); p.Stop() }()
	testrun.True(t, "the api drains", func() bool {
		got, err := http.Get(p.URL + "/healthz") //nolint:noctx // the test ends soon
		if err == nil {
			_ = got.Body.Close()
		}
		return err != nil
	})
	testdb.Exec(t, db.Pool(), `insert into gate values (1)`)
	if got := testrun.Receive(t, "the answer", accepted); got.Status != http.StatusAccepted {
		t.Fatalf("%v", got)
	}
	testrun.Receive(t, "the end", stopped)
	ctx, cancel := context.WithTimeout(t.Context(), testrun.Stall)
	defer cancel()
	if _, err := listener.WaitForNotification(ctx); err != nil {
		t.Errorf("no worker is notified: %v", err)
	}
}
