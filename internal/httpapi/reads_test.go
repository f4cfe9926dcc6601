package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger/books"
)

// TestListCharges: each charge is listed as it is shown, byte for byte. Each parameter is read, and one
// that is unknown or there twice is refused. ledger/books.TestListCharges_pagesAreStable has the pages.
func TestListCharges(t *testing.T) {
	t.Parallel()
	w := serve(t)
	var ids []string
	for i, order := range []string{"a", "b<&>", "c"} {
		a := w.accept(t, fmt.Sprint("key-", i), body("order_id", fmt.Sprintf("%q", order), "metadata", `{"note":"<ü & x>"}`))
		ids = append([]string{idOf(a.header.Get("Location"))}, ids...)
	}
	foreign := idOf(w.accepted(t, post("key-1", body()).as(globexKey)).header.Get("Location"))
	for query, want := range map[string][]string{
		"": ids, "?order_id=&status=&limit=&starting_after=": ids, "?order_id=b%3C%26%3E": ids[1:2], "?status=pending&limit=1": ids[:1],
		"?starting_after=" + ids[0]: ids[1:], "?status=failed": nil, "?order_id=A": nil,
	} {
		var page struct {
			Data []json.RawMessage `json:"data"`
		}
		testdb.Must(t, json.Unmarshal([]byte(w.send(t, get("/v1/charges"+query)).body), &page))
		if len(page.Data) != len(want) {
			t.Errorf("%s has %s", query, page.Data)
			continue
		}
		for i, raw := range page.Data {
			shown := w.send(t, get("/v1/charges/"+want[i])).body
			testrun.Same(t, query, strings.TrimSuffix(shown, "\n"), string(raw))
		}
	}
	for query, pointer := range map[string]string{
		"?limit=05": "/limit", "?starting_after=" + foreign: "/starting_after", "?stauts=failed": "",
		"?order_id=a&order_id=b": "/order_id", "?order_id=%ff": "/order_id", "?4242424242424242=1": "", "?a=%zz": "",
	} {
		a := w.send(t, get("/v1/charges"+query))
		wantPointers(t, wantProblem(t, a, "/problems/validation"), pointer)
		if strings.Contains(a.body, "4242") {
			t.Errorf("a card number is repeated: %s", a.body)
		}
	}
}

func TestListCharges_endsAPageByItsBytes(t *testing.T) {
	testrun.Long(t, "its charges are large")
	t.Parallel()
	w := serve(t)
	const charges = 30
	for i := range charges {
		w.accept(t, fmt.Sprint("key-", i), large())
	}
	first := w.send(t, get("/v1/charges?limit=100"))
	next, _ := members(t, first.body)["next"].(string)
	rest := w.send(t, get("/v1/charges?limit=100&starting_after="+next))
	if n := len(first.body); n > books.MaxPage+1000 || n < books.MaxPage/2 ||
		members(t, first.body)["has_more"] != true || len(data(t, first))+len(data(t, rest)) != charges {
		t.Errorf("%d charges of %d bytes, and then %d", len(data(t, first)), n, len(data(t, rest)))
	}
}

// TestReads_areAnsweredAlike: by HEAD too, and whatever Idempotency-Key comes with them.
func TestReads_areAnsweredAlike(t *testing.T) {
	testrun.Long(t, "it asks every route")
	t.Parallel()
	w := serve(t)
	reads := w.reads(t)
	before := rows(t, w.db)
	for _, path := range reads {
		read := w.insist(t, get(path))
		head := w.insist(t, get(path).like(http.MethodHead))
		if head.status != read.status || head.body != "" || head.header.Get("Content-Type") != read.header.Get("Content-Type") {
			t.Errorf("%s: HEAD %d %q, GET %d: %v", path, head.status, head.body, read.status, head.header)
		}
		for _, values := range [][]string{{"a-charge-to-read"}, {`"`}, {"a", "b"}, {"4242424242424242"}} {
			a := w.insist(t, get(path).with("Idempotency-Key", values...))
			wantSame(t, path, read, a, "X-Request-Id")
		}
	}
	wantRows(t, w.db, before, nil)
}

// TestMerchant_doesNotSeeOthers asks for what is another merchant's and for what is not
// there at all: the answers are the same, byte for byte, but for what was asked.
func TestMerchant_doesNotSeeOthers(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.captured(t, "acme-charge")
	refund := w.accepted(t, to(charge+"/refunds", "acme-refund", `{"amount":1}`)).header.Get("Location")
	id, refundID := idOf(charge), refund[strings.LastIndex(refund, "/")+1:]
	before := rows(t, w.db)
	none := strings.NewReplacer(
		id, "ch_"+strings.Repeat("0", len(id)-3),
		refundID, "re_"+strings.Repeat("0", len(refundID)-3),
		"acme-charge", "none-charge")
	for _, c := range []call{
		get(charge), get(charge + "/events"), get(charge + "/refunds"), get(refund), get("/v1/idempotency-keys/acme-charge"),
		to(charge+"/cancel", "globex-cancel", "{}"), to(charge+"/refunds", "globex-refund", `{"amount":1}`), to(charge+"/refunds", "globex-lot", `{}`),
	} {
		c = c.as(globexKey).with("X-Request-Id", "the-same")
		nothing := c
		nothing.path = none.Replace(c.path)
		if key := c.header.Get("Idempotency-Key"); key != "" {
			nothing = nothing.with("Idempotency-Key", "none"+key[len("none"):])
		}
		got, want := w.send(t, c), w.send(t, nothing)
		if p := readProblem(t, got); p.Type != "/problems/not-found" {
			t.Errorf("%s: %s", c.path, got.body)
		}
		got.body = none.Replace(got.body)
		wantSame(t, c.method+" "+c.path, want, got, "Idempotency-Key", "Idempotency-Expires")
	}
	// Refusals of the business are stored under globex' keys, and are all there is.
	wantRows(t, w.db, before, map[string]int64{"idempotency_keys": 6})

	for _, list := range []string{"/v1/balances", "/v1/charges", "/v1/events"} {
		if found := data(t, w.send(t, get(list).as(globexKey))); len(found) > 0 {
			t.Errorf("globex has %s: %v", list, found)
		}
	}
	if a := w.send(t, get("/v1/balances")); !strings.Contains(a.body, ":acme") || strings.Contains(a.body, "globex") {
		t.Errorf("acme has %s", a.body)
	}
}

// TestEvents_areFollowed: events of each kind are as the contract says. A charge to which a newer program wrote holds up no other, and the page names
// its event. ledger/books.TestReadFeed has the pages.
func TestEvents_areFollowed(t *testing.T) {
	t.Parallel()
	w := serve(t)
	newer, last := idOf(w.captured(t, "newer")), idOf(w.captured(t, "last"))
	_, refund, _ := strings.Cut(w.accepted(t, to("/v1/charges/"+last+"/refunds", "refund", `{"amount":1}`)).header.Get("Location"), "/refunds/")
	disputed := domain.DisputeOpened{DisputeID: "dp_1", Provider: domain.Provider, Amount: 5, Reason: "fraudulent"}
	w.happen(t, "/v1/charges/"+last, returned(refund), happens(disputed))
	testdb.Exec(t, w.db.Pool(), `alter table ledger_events disable trigger ledger_events_append_only`)
	testdb.Exec(t, w.db.Pool(), `update ledger_events set type = 'charge.exploded.v1' where stream_id = $1 and version = 2`, newer)
	var a answer
	testrun.Progress(t, "all outcomes are in the feed", func() (string, bool) { // it waits for open transactions of other tests
		a = w.send(t, get("/v1/events?limit=4&after="))
		return a.body, strings.Contains(a.body, `"charge_id":"`+newer+`"`) && strings.Contains(a.body, `"id":"`+last+`"`) &&
			strings.Contains(a.body, `"id":"`+refund+`"`) && strings.Contains(a.body, `"id":"dp_1"`)
	})
	after := fmt.Sprint("/v1/events?after=", members(t, a.body)["next"])
	if again := w.send(t, get(after)); len(data(t, again)) > 0 {
		t.Errorf("after the last: %s", again.body)
	}
	wantPointers(t, wantProblem(t, w.send(t, get(after).as(globexKey)), "/problems/validation"), "/after")
}

// TestPreferWait_onACharge waits over a pool of one connection, which every other request needs too. No wait holds up a shutdown.
func TestPreferWait_onACharge(t *testing.T) {
	testrun.Long(t, "it waits for a charge")
	t.Parallel()
	w := serveOn(t, openWith(t, postgres.Options{MaxConns: 1}), func(api *httpapi.Config) { api.Limits.InFlight = 4 })
	ended, pending := w.captured(t, "ended"), w.accept(t, "pending", body("return_url", `"https://shop.example"`)).header.Get("Location")
	open := w.accept(t, "open", body()).header.Get("Location")
	patient := func(path string) call { return get(path).with("Prefer", "wait=10") }
	is := func(a answer, status string) {
		t.Helper()
		if got := members(t, a.body)["status"]; a.status != http.StatusOK || got != status {
			t.Errorf("%d %v, want %s", a.status, got, status)
		}
	}
	is(w.send(t, patient(ended)), "succeeded")
	is(w.send(t, get(pending).with("Prefer", "wait=soon")), "pending")
	began := time.Now()
	is(w.send(t, get(pending).with("Prefer", "wait=1")), "pending")
	if waited := time.Since(began); waited < time.Second {
		t.Errorf("it waited %s", waited)
	}

	first := w.sendAll(t, patient(pending), patient(pending))
	is(<-first, "pending") // one more than may wait
	intent := "pi_" + idOf(pending)
	w.happen(t, pending, happens(domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: intent}))
	w.happen(t, pending, happens(domain.PaymentActionRequired{URL: "https://bank.example", ExpiresAt: time.Now().Add(time.Hour)}))
	is(<-first, "requires_action")
	second := w.sendAll(t, patient(pending))
	w.happen(t, pending, func(c domain.Charge) []domain.Event { return c.Capture(intent, c.Money) })
	is(<-second, "succeeded")

	last := w.sendAll(t, patient(open))
	testdb.Must(t, w.server.Shutdown(t.Context()))
	is(<-last, "pending")
	if waited := time.Since(began); waited > 10*time.Second {
		t.Errorf("all waited %s", waited)
	}
}
