package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestEvents_areFollowedPageByPage(t *testing.T) {
	t.Parallel()
	w := serve(t)
	var want, got []string
	for i := range 3 {
		want = append(want, "charge.succeeded "+idOf(w.captured(t, fmt.Sprint("key-", i))))
	}
	next := ""
	await.Progress(t, "all outcomes are in the feed", func() (string, bool) { // it waits for open transactions of other tests
		a := w.send(t, get("/v1/events?limit=2&after="+next))
		for _, entry := range data(t, a) {
			of, _ := entry["data"].(map[string]any)
			got = append(got, fmt.Sprint(entry["type"], " ", of["id"]))
		}
		next, _ = members(t, a.body)["next"].(string)
		return fmt.Sprint(got), len(got) >= len(want)
	})
	testrun.Same(t, "events", want, got)

	if a := w.send(t, get("/v1/events").as(strangerKey)); len(data(t, a)) > 0 {
		t.Errorf("another merchant gets %s", a.body)
	}
	wantPointers(t, wantProblem(t, w.send(t, get("/v1/events?after="+next).as(strangerKey)), "/problems/validation"), "/after")
}

// TestEvents_nameWhatCannotBeRead: a charge to which a newer program wrote holds up no other. The page
// names its event, and the log says why.
func TestEvents_nameWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := serve(t)
	newer, other := idOf(w.captured(t, "newer")), idOf(w.captured(t, "other"))
	testdb.Exec(t, w.db.Pool(), `alter table ledger_events disable trigger ledger_events_append_only`)
	testdb.Exec(t, w.db.Pool(), `update ledger_events set type = 'charge.exploded.v1' where stream_id = $1 and version = 2`, newer)
	var a answer
	await.Progress(t, "the feed has both events", func() (string, bool) { // it waits for open transactions of other tests
		a = w.send(t, get("/v1/events"))
		unreadable, _ := members(t, a.body)["unreadable"].([]any)
		return a.body, len(data(t, a)) == 1 && len(unreadable) == 1
	})
	if of, _ := data(t, a)[0]["data"].(map[string]any); of["id"] != other {
		t.Errorf("the page is %s", a.body)
	}
	unreadable, _ := members(t, a.body)["unreadable"].([]any)
	named, _ := unreadable[0].(map[string]any)
	if named["charge_id"] != newer || named["type"] != "charge.succeeded" {
		t.Errorf("unreadable is %v, want %s", named, newer)
	}
	more := w.send(t, get("/v1/events?after="+fmt.Sprint(members(t, a.body)["next"])))
	if more.status != http.StatusOK || members(t, more.body)["unreadable"] != nil || len(data(t, more)) > 0 {
		t.Errorf("behind the page are %s", more.body)
	}
	if log := w.log.String(); !strings.Contains(log, `"level":"WARN"`) || !strings.Contains(log, newer) || !strings.Contains(log, "unknown event type") {
		t.Errorf("the log is\n%s", log)
	}
}

// waits sends a request, and returns when the api polls for it.
func (w *world) waits(t *testing.T, send func()) {
	t.Helper()
	since := testdb.One[time.Time](t, w.db, `select clock_timestamp()`)
	send()
	await.Row(t, w.db, `
select exists (
         select
           from pg_stat_activity
          where datname = current_database()
            and pid <> pg_backend_pid()
            and query ~ 'count.*from ledger_events\s+where stream_id'
            and query_start > $1)`, since)
}

// TestPreferWait_onACharge waits over a pool of one connection, which every other request needs too.
func TestPreferWait_onACharge(t *testing.T) {
	t.Parallel()
	w, server := newWorld(t, openWith(t, postgres.Options{MaxConns: 1}), func(api *httpapi.Config) { api.Limits.Waiting = 1 })
	server.Handler = w.handler
	w.listen(t, server)
	ended, pending := w.captured(t, "ended"), w.accept(t, "pending", body("return_url", `"https://shop.example"`)).header.Get("Location")
	is := func(a answer, status, applied string) {
		t.Helper()
		if got := members(t, a.body)["status"]; a.status != http.StatusOK || got != status || a.header.Get("Preference-Applied") != applied {
			t.Errorf("%d %v, Preference-Applied %q, want %s and %q", a.status, got, a.header.Get("Preference-Applied"), status, applied)
		}
	}
	is(w.send(t, get(ended).with("Prefer", "wait=10")), "succeeded", "wait=10")
	is(w.send(t, get(pending).with("Prefer", "wait=soon")), "pending", "")

	began := time.Now()
	is(w.send(t, get(pending).with("Prefer", "wait=1")), "pending", "wait=1")
	if waited := time.Since(began); waited < time.Second {
		t.Errorf("it waited %s", waited)
	}

	var first <-chan answer
	w.waits(t, func() { first = w.sendAll(t, get(pending).with("Prefer", "wait=10")) })
	is(w.send(t, get(pending).with("Prefer", "wait=10")), "pending", "") // one more than may wait
	intent := "pi_" + idOf(pending)
	w.happen(t, pending, happens(domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: intent}))
	w.happen(t, pending, happens(domain.PaymentActionRequired{URL: "https://bank.example", ExpiresAt: time.Now().Add(time.Hour)}))
	is(<-first, "requires_action", "wait=10")

	second := w.sendAll(t, get(pending).with("Prefer", "wait=10"))
	w.happen(t, pending, func(c domain.Charge) []domain.Event { return c.Capture(intent, c.Amount) })
	is(<-second, "succeeded", "wait=10")

	pending = w.accept(t, "gone", body()).header.Get("Location")
	gone, leave := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(gone, http.MethodGet, w.url+pending, nil)
	testdb.Must(t, err)
	request.Header = get("").with("Prefer", "wait=10").header
	left := make(chan error, 1)
	w.waits(t, func() {
		go func() {
			response, err := http.DefaultClient.Do(request)
			if err == nil {
				err = response.Body.Close()
			}
			left <- err
		}()
	})
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("a client that has left got %v", err)
	}
	await.True(t, "the next may wait", func() bool {
		return w.send(t, get(ended).with("Prefer", "wait=10")).header.Get("Preference-Applied") != ""
	})
}

// TestPreferWait_onAChargeEndsWithTheServer: a wait does not hold up a shutdown.
func TestPreferWait_onAChargeEndsWithTheServer(t *testing.T) {
	t.Parallel()
	w, server := newWorld(t, testdb.Reused(t))
	w.listen(t, server)
	pending := w.accept(t, "pending", body()).header.Get("Location")
	var answers <-chan answer
	w.waits(t, func() { answers = w.sendAll(t, get(pending).with("Prefer", "wait=10")) })
	began := time.Now()
	testdb.Must(t, server.Shutdown(t.Context()))
	if a := <-answers; a.status != http.StatusOK || time.Since(began) > 9*time.Second {
		t.Errorf("status %d after %s", a.status, time.Since(began))
	}
}
