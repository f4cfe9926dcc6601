package httpapi_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// TestPreferWait: what is understood is applied, whether or not there is anything to wait for.
// TestRulesWhoPrefersToWaitIsAnsweredLikeTheFirst waits.
func TestPreferWait(t *testing.T) {
	t.Parallel()
	w := serve(t)
	for prefer, applied := range map[string]string{
		"wait=10": "wait=10", "wait=3600": "wait=10", `respond-async, Wait = "9" ; x=y, return=minimal`: "wait=9", "wait=2, wait=3": "wait=2",
		"wait=0": "", "wait=soon": "", "wait=-1": "", "return=minimal": "", "wait": "", "wait=99999999999": "",
	} {
		if got := w.accepted(t, post("key-1", body()).with("Prefer", prefer)).header.Get("Preference-Applied"); got != applied {
			t.Errorf("%s: Preference-Applied is %q, want %q", prefer, got, applied)
		}
	}
}

// TestWaitersLeaveConnectionsToOthers: many requests would wait for one key that
// stays in flight, as long as they may, and nobody else notices.
func TestWaitersLeaveConnectionsToOthers(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	const clients, connections, waiters = 16, 6, 2
	db := testdb.Reused(t)
	w := serveOn(t, open(t, addressOf(db), postgres.Options{MaxConns: connections, LockTimeout: 20 * time.Millisecond}), func(api *httpapi.Config) {
		api.Intake.Keys.Waiters = make(chan struct{}, waiters)
	})
	held := hold(t, db, "key-1")
	answers := make(chan answer, clients)
	for range clients {
		go func() {
			a, err := w.try(t, post("key-1", body()).with("Prefer", "wait=10"))
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	for range clients - waiters {
		a := <-answers
		wantProblemStatus(t, a, "/problems/idempotency-key-in-use", http.StatusConflict)
		if a.header.Get("Preference-Applied") != "" {
			t.Errorf("who was turned away is told %q", a.header.Get("Preference-Applied"))
		}
	}
	waitingFor(t, db, waiters, 200*time.Millisecond)
	for i := range 3 { // within the ten seconds that the others wait
		w.accept(t, "own-"+strconv.Itoa(i), body())
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	replayed := 0
	for range waiters {
		a := <-answers
		if a.status != http.StatusAccepted || a.header.Get("Preference-Applied") != "wait=10" {
			t.Errorf("status %d, applied %q: %s", a.status, a.header.Get("Preference-Applied"), a.body)
		}
		if a.header.Get("Idempotent-Replayed") == "true" {
			replayed++
		}
	}
	if replayed != waiters-1 {
		t.Errorf("%d of %d waiters were answered like the first", replayed, waiters)
	}
}

func TestAPathIsReadAsItIsMeant(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.accept(t, "charge", body()).header.Get("Location")
	spelled := strings.Replace(charge, "/ch_", "/%63h_", 1)
	if a, b := w.send(t, get(charge)), w.send(t, get(spelled)); b.status != http.StatusOK || a.body != b.body {
		t.Errorf("status %d: %s", b.status, b.body)
	}
	first := w.send(t, to(spelled+"/cancel", "cancel", ""))
	again := w.send(t, to(charge+"/cancel", "cancel", ""))
	if first.status != http.StatusAccepted || again.body != first.body || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("status %d and %d: %s", first.status, again.status, again.body)
	}
}
