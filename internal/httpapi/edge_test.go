package httpapi_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

func TestKeyLookup(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.captured(t, "a/b?c")
	w.send(t, to(charge+"/refunds", "a/b?c", `{"amount":2}`))
	w.send(t, to(charge+"/refunds", "refused", `{"amount":9999}`))
	path := "/v1/idempotency-keys/" + url.PathEscape("a/b?c")

	uses := data(t, w.send(t, get(path)))
	var got [][]any
	for _, e := range uses {
		got = append(got, []any{e["operation"], e["status_code"]})
		seen, err := time.Parse(time.RFC3339, fmt.Sprint(e["first_seen"]))
		expires, err2 := time.Parse(time.RFC3339, fmt.Sprint(e["expires_at"]))
		if err != nil || err2 != nil || expires.Sub(seen) > retention || expires.Sub(seen) < retention-time.Minute {
			t.Errorf("first seen %v, expires at %v", e["first_seen"], e["expires_at"])
		}
		if len(e) != 5 {
			t.Errorf("members: %v", e)
		}
	}
	want := [][]any{{"POST /v1/charges", 202.0}, {"POST /v1/charges/:id/refunds", 202.0}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("uses (-want +got):\n%s", diff)
	}
	if uses[0]["location"] != charge {
		t.Errorf("location is %v, want %s", uses[0]["location"], charge)
	}
	refused := data(t, w.send(t, get("/v1/idempotency-keys/refused")))[0]
	if refused["status_code"] != 422.0 || refused["location"] != nil {
		t.Errorf("a refusal: %v", refused)
	}
	for name, path := range map[string]string{
		"an unused key": "/v1/idempotency-keys/unused", "no key": "/v1/idempotency-keys/%00", "a long one": "/v1/idempotency-keys/" + strings.Repeat("k", 256),
	} {
		if a := w.send(t, get(path)); a.status != http.StatusNotFound {
			t.Errorf("%s: status %d: %s", name, a.status, a.body)
		}
	}
	wantProblem(t, w.send(t, get(path).with("Authorization", "Bearer "+strangerKey)), "/problems/not-found")
	card := w.send(t, get("/v1/idempotency-keys/4242424242424242"))
	if p := readProblem(t, card); p.Type != "/problems/validation" || strings.Contains(card.body, "4242") || p.Instance != "" {
		t.Errorf("the card number is repeated: %s", card.body)
	}
}

func TestPreferWait(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, prefer, applied string
		replays               bool
	}{
		{"who prefers to wait is answered like the first", "wait=10", "wait=10", true},
		{"nobody waits longer than ten seconds", "wait=3600", "wait=10", true},
		{"among other preferences", `respond-async, Wait = "9" ; x=y, return=minimal`, "wait=9", true},
		{"of no time is not waited for", "wait=0", "", false},
		{"of no number is not waited for", "wait=soon", "", false},
		{"of less than nothing is not waited for", "wait=-1", "", false},
		{"another preference is not waited for", "return=minimal", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Reused(t)
			w := serveOn(t, db, func(*httpapi.Config) {})
			first := w.accept(t, "key-1", body())
			exec(t, db, `create table kept as select * from idempotency_keys`)
			exec(t, db, `delete from idempotency_keys`)
			held := begin(t, db)
			exec(t, held, `insert into idempotency_keys select * from kept`)

			impatient := serveOn(t, open(t, addressOf(db), postgres.Options{LockTimeout: 30 * time.Millisecond}), func(api *httpapi.Config) {
				api.InFlight, api.Intake.Keys.Waiters = http.StatusTooEarly, make(chan struct{}, 1)
			})
			answers := make(chan answer, 1)
			go func() {
				a, err := impatient.try(t, post("key-1", body()).with("Prefer", test.prefer))
				if err != nil {
					t.Error(err)
				}
				answers <- a
			}()
			if !test.replays {
				a := <-answers
				wantProblemStatus(t, a, "/problems/idempotency-key-in-use", http.StatusTooEarly)
				if a.header.Get("Preference-Applied") != test.applied {
					t.Errorf("Preference-Applied is %q", a.header.Get("Preference-Applied"))
				}
				return
			}
			waitingFor(t, db, 1, 10*30*time.Millisecond)
			if err := held.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			a := <-answers
			if a.body != first.body || a.header.Get("Idempotent-Replayed") != "true" || a.header.Get("Preference-Applied") != test.applied {
				t.Errorf("status %d, applied %q: %s", a.status, a.header.Get("Preference-Applied"), a.body)
			}
		})
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
