package httpapi_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// TestPreferWait_isAppliedIfUnderstood: what is understood is applied, whether or not there is anything to wait for.
// TestPreferWait_receivesTheFirstAnswer waits.
func TestPreferWait_isAppliedIfUnderstood(t *testing.T) {
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

func TestPath_isDecoded(t *testing.T) {
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

func TestKeyInFlight_isAnsweredByPolicy(t *testing.T) {
	t.Parallel()
	const wait = 30 * time.Millisecond
	for policy, status := range map[string]int{
		"a conflict": http.StatusConflict, "too early": http.StatusTooEarly, "accepted without an answer": http.StatusAccepted,
	} {
		t.Run("is "+policy, func(t *testing.T) {
			t.Parallel()
			db := openWith(t, postgres.Options{LockTimeout: wait})
			w := serveOn(t, db, func(api *httpapi.Config) { api.InFlight = status })
			for _, r := range w.routes(t) {
				before := rows(t, db)
				held := holdAt(t, db, r.operation, "key")
				began := time.Now()
				a := w.send(t, r.under(`"key"`))
				if waited := time.Since(began); waited < wait {
					t.Errorf("%s: it waited %s, want %s at least", r.name, waited, wait)
				}
				if status == http.StatusAccepted {
					wantStatus(t, a, status)
					if a.body != "{}" || a.header.Get("Retry-After") != "1" || a.header.Get("Idempotent-Replayed") != "" || a.header.Get("Idempotency-Expires") != "" {
						t.Errorf("%s: headers %v: %s", r.name, a.header, a.body)
					}
				} else {
					wantProblemStatus(t, a, "/problems/idempotency-key-in-use", status)
				}
				if a.header.Get("Idempotency-Key") != "key" || a.header.Get("Location") != "" {
					t.Errorf("%s: headers %v", r.name, a.header)
				}
				testdb.Must(t, held.Rollback(t.Context()))
				wantRows(t, db, before, nil)
				w.first(t, r.under("key"))
			}
		})
	}
}

// Prefer: wait holds wherever a key is taken, whatever the server's own policy.
func TestPreferWait_receivesTheFirstAnswer(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	url := addressOf(testdb.Reused(t))
	w := serveOn(t, testdb.OpenAt(t, url, postgres.Options{}))
	var refused atomic.Int64 // tries
	impatient := serveOn(t, testdb.OpenAt(t, url, postgres.Options{LockTimeout: 30 * time.Millisecond}), func(api *httpapi.Config) {
		api.InFlight = http.StatusAccepted
		api.Intake.OnCommit = func(err error) {
			if groupcommit.OutcomeOf(err) == groupcommit.Locked {
				refused.Add(1)
			}
		}
	})
	routes := w.routes(t)
	firsts := make([]answer, len(routes))
	for i, r := range routes {
		firsts[i] = w.accepted(t, r.under("key"))
	}
	exec(t, w.db, `create table kept as select * from idempotency_keys where key = 'key'`)
	exec(t, w.db, `delete from idempotency_keys where key = 'key'`)
	held := testdb.Begin(t, w.db.Pool(), `insert into idempotency_keys select * from kept`)
	answers := make([]<-chan answer, len(routes))
	for i, r := range routes {
		answers[i] = impatient.sendAll(t, r.under("key").with("Prefer", "wait=10"))
	}
	await.True(t, "all have tried several times", func() bool { return refused.Load() > int64(5*len(routes)) })
	testdb.Must(t, held.Commit(t.Context()))
	for i, r := range routes {
		a := <-answers[i]
		wantReplay(t, firsts[i], a)
		if applied := a.header.Get("Preference-Applied"); applied != "wait=10" {
			t.Errorf("%s: Preference-Applied is %q", r.name, applied)
		}
	}
}

// TestRefunds_moreInFlightThanConnections has many refunds of one charge in
// flight over a pool of two, all of which prefer to wait: half of them under
// one key, half under keys of their own. A refused request is sent again: nothing stalls.
func TestRefunds_moreInFlightThanConnections(t *testing.T) {
	t.Parallel()
	const n = 20
	db := openWith(t, postgres.Options{MaxConns: 2, LockTimeout: 20 * time.Millisecond})
	w := serveOn(t, db)
	paid := w.captured(t, "paid")
	before := rows(t, db)
	var (
		mu       sync.Mutex
		answers  = map[string]map[string]bool{} // key → bodies
		again    int
		inFlight sync.WaitGroup
	)
	for i := range n {
		for _, key := range []string{"shared", "own-" + strconv.Itoa(i)} {
			inFlight.Go(func() {
				c := to(paid+"/refunds", key, `{"amount":7}`).with("Prefer", "wait=10")
				a, err := w.try(t, c)
				for tries := 0; err == nil && a.header.Get("Retry-After") != "" && tries < 100*n; tries++ {
					mu.Lock()
					again++
					mu.Unlock()
					a, err = w.try(t, c)
				}
				if err != nil || a.status != http.StatusAccepted {
					t.Errorf("key %s: status %d, %v: %s", key, a.status, err, a.body)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if answers[key] == nil {
					answers[key] = map[string]bool{}
				}
				answers[key][a.body] = true
			})
		}
	}
	inFlight.Wait()
	for key, bodies := range answers {
		if len(bodies) != 1 {
			t.Errorf("key %s has %d answers", key, len(bodies))
		}
	}
	wantRows(t, db, before, ofCharges(n+1))
	if got := len(data(t, w.send(t, get(paid+"/refunds")))); got != n+1 || len(answers) != n+1 {
		t.Errorf("%d refunds under %d keys, want %d", got, len(answers), n+1)
	}
	t.Logf("%d requests, which were refused %d times before", 2*n, again)
}
