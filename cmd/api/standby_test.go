package main

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestRun_withoutItsStandby sends more charges than the api has connections while no standby confirms
// a commit: reads are answered, /readyz says why charges are not, and each charge is accepted once.
func TestRun_withoutItsStandby(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it lets commits time out")
	db, server := database(t)
	standby := testdb.StandbyOf(t, server, "service")
	p := testrun.Start(t, run, environ(server.URL("service"), "DATABASE_CONNECTIONS", "5"))
	first := send(t, p, "key-first")
	path := first.Header.Get("Location")

	standby.Leaves(t)
	var all sync.WaitGroup
	var sent atomic.Int32
	const keys = 12
	charges := func(done func(testrun.Response) bool) {
		for n := range keys {
			all.Go(func() {
				key := "key-" + strconv.Itoa(n)
				sent.Add(1)
				for ended := false; !ended && t.Context().Err() == nil; {
					ended = done(sendBody(t, p, key, strings.Replace(charge, "order-1", "order-"+key, 1)))
				}
			})
		}
	}
	charges(func(r testrun.Response) bool {
		if r.Status != http.StatusAccepted && (!strings.Contains(r.Body, `"retry_with":"same-key"`) || r.Header.Get("Retry-After") == "") {
			t.Errorf("a charge is answered %v", r)
		}
		return true
	})
	testrun.Progress(t, "/readyz says why", func() (seen string, done bool) {
		got := p.Get(t, "/readyz")
		return got.Body, got.Status == http.StatusServiceUnavailable && strings.Contains(got.Body, "standby")
	})
	for _, path := range []string{path, "/v1/charges", "/v1/balances", "/v1/idempotency-keys/key-first"} {
		if got := read(t, p, path); got.Status != http.StatusOK {
			t.Errorf("%s is answered %v", path, got)
		}
	}
	if got := send(t, p, "key-first"); got.Status != http.StatusServiceUnavailable || !strings.Contains(got.Body, `"retry_with":"same-key"`) {
		t.Errorf("a replay is answered %v", got)
	}
	all.Wait()
	if n := testdb.One[int](t, standby, `select count(*) from pg_stat_activity where wait_event = 'SyncRep' and datname = current_database()`); n > 3 {
		t.Errorf("%d sessions of the server wait, want 3 at most: 2 in commits and 1 in the read of keys", n)
	}

	standby.Returns(t)
	testrun.True(t, "the api is ready", func() bool { return p.Get(t, "/readyz").Status == http.StatusOK })
	charges(func(r testrun.Response) bool { return r.Status == http.StatusAccepted })
	all.Wait()
	if again := send(t, p, "key-first"); again.Body != first.Body {
		t.Errorf("the replay is %v", again)
	}
	if n := testdb.One[int](t, db, `select count(*) from outbox`); n != 1+keys {
		t.Errorf("%d messages were committed, want %d", n, 1+keys)
	}
}
