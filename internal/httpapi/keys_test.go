package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// The key is the client's: it may be of digits alone. What may be a card number is stored as
// a hash, and logged nowhere.
func TestKey_thatMayBeACardNumber(t *testing.T) {
	t.Parallel()
	w := serve(t)
	routes, keys := w.routes(t), []string{"4242424242424242", "refund-5555-5555-5555-4444"}
	for _, key := range keys {
		for _, r := range routes {
			a := w.accepted(t, r.under(key))
			if a.header.Get("Idempotency-Key") != key {
				t.Errorf("%s: headers %v", r.name, a.header)
			}
			wantReplay(t, a, w.send(t, r.under(`"`+key+`"`)))
		}
		if uses := data(t, w.send(t, get("/v1/idempotency-keys/"+key))); len(uses) != len(routes) {
			t.Errorf("%s led to %v", key, uses)
		}
	}
	for _, column := range []string{"idempotency_keys.key", "ledger_events.metadata::text", "outbox.metadata::text"} {
		table, _, _ := strings.Cut(column, ".")
		testrun.Row(t, w.db, `select count(*) > 0 and not bool_or(`+column+` ~ '4242[ -]?4242|5555[ -]?5555') from `+table)
	}
	if regexp.MustCompile(`4242[ -]?4242|5555[ -]?5555`).MatchString(w.log.String()) {
		t.Errorf("the number is logged: %s", w.log)
	}
}

// TestReusedKey_isRefused, and the refusal names the members that differ, not their values.
func TestReusedKey_isRefused(t *testing.T) {
	t.Parallel()
	const original = `{"order_id":"order-1","amount":2000,"currency":"USD","payment_method":"pm_card_visa","customer":"cus_ada",` +
		`"items":[{"sku":"tshirt","quantity":2}],"description":"A gift","metadata":{"channel":"web","a":"b"}}`
	w := serve(t)
	paid, open := w.captured(t, "paid"), w.accept(t, "open", body()).header.Get("Location")
	other := w.accept(t, "other", body()).header.Get("Location")
	w.accept(t, "charge", original)
	refund := func(charge, body string) call { return to(charge+"/refunds", "refund", body) }
	first := w.accepted(t, refund(paid, `{"amount":321,"reason":"broken"}`))
	w.accepted(t, to(open+"/cancel", "cancel", ""))
	before := rows(t, w.db)
	charge := func(from, to string) call { return post("charge", strings.Replace(original, from, to, 1)) }
	for _, test := range []struct {
		call     call
		pointers string
	}{
		{charge("2000", "2001"), "/amount"},
		{charge("cus_ada", "cus_bob"), "/customer"},
		{charge(`,"description":"A gift"`, ""), "/description"},
		{charge("channel", "x/y~z"), "/metadata/channel /metadata/x~1y~0z"},
		{refund(paid, `{"amount":4321}`), "/amount /reason"},
		{refund(open, `{"amount":321,"reason":"broken"}`), ""},
		{to(other+"/cancel", "cancel", ""), ""},
	} {
		a := w.send(t, test.call)
		wantPointers(t, wantProblem(t, a, "/problems/idempotency-key-reused"), strings.Fields(test.pointers)...)
		if regexp.MustCompile(`200[01]|gift|cus_|321|roken`).MatchString(strings.ReplaceAll(a.body, test.call.path, "")) {
			t.Errorf("the answer repeats a value: %s", a.body)
		}
		if key := test.call.header.Get("Idempotency-Key"); a.header.Get("Location") != "" ||
			a.header.Get("Idempotency-Key") != key || a.header.Get("Idempotency-Expires") == "" {
			t.Errorf("headers: %v", a.header)
		}
	}
	wantRows(t, w.db, before, nil)
	wantReplay(t, first, w.send(t, refund(paid, `{"amount":321,"reason":"broken"}`)))
}

// TestKey_knowsItsRequest: a key is one request of each operation and merchant, however that is spelled. What a request is
// fingerprinted by is stored: if it came out otherwise one day, every retry of a request from before would be refused.
func TestKey_knowsItsRequest(t *testing.T) {
	t.Parallel()
	w := serve(t)
	const whole = `{"order_id":"order-1","amount":2000,"currency":"USD","payment_method":"pm_card_visa","customer":"cus_ada",` +
		`"items":[{"sku":"mug","quantity":2}],"description":"A gift","metadata":{"a":"1","b":"2"}}`
	routes := w.routes(t)
	for _, test := range []struct {
		route          route
		key, canonical string
		spelled        []string
	}{
		{routes[0], "key", whole, []string{
			` {"metadata":{"b":"2","a":"1"},"description":"\u0041 gift","items":[{"quantity":2,"sku":"mug"}],` +
				`"customer":"cus_ada","payment_method":"pm_card_visa","currency":"USD","amount":2000,"order_id":"order-1"}`,
			"\r\n\t" + strings.ReplaceAll(whole, ":", " :\n") + " ",
		}},
		{routes[0], "without members", body(), []string{
			body(), body("items", "null", "metadata", "{}", "customer", "null"),
			body("items", "[]", "metadata", `{"channel":null}`, "description", "null"),
		}},
		{routes[1], "key", `{}`, []string{"", "{ }"}},
		{routes[2], "key", `{"amount":1,"reason":"broken"}`, []string{` {"reason":"\u0062roken","amount":1} `}},
	} {
		r, key := test.route, `"`+test.key+`"`
		first := w.accepted(t, to(r.path, key, test.spelled[0]))
		for _, again := range test.spelled[1:] {
			wantReplay(t, first, w.send(t, to(r.path, key, again)))
		}
		var fingerprint, stored []byte
		err := w.db.QueryRow(t.Context(), `
select fingerprint, request from idempotency_keys where key = $1 and operation = $2`, test.key, r.operation).Scan(&fingerprint, &stored)
		testdb.Must(t, err)
		want := idempotency.Fingerprint([]byte("v1"), []byte("POST"), []byte(r.path), []byte("acme"), []byte(test.canonical))
		testrun.Same(t, r.name+": the request", test.canonical, string(stored))
		testrun.Same(t, r.name+": the fingerprint", want, fingerprint)
		foreign := map[bool]int{true: http.StatusAccepted, false: http.StatusNotFound}[r.path == "/v1/charges"]
		wantStatus(t, w.send(t, to(r.path, key, test.spelled[0]).as(globexKey)), foreign)
	}
}

// outcomes sends requests with every kind of answer that is stored, and returns them with their first answers.
func (w *world) outcomes(t *testing.T) (calls []call, answers []answer, open, paid string) {
	t.Helper()
	open, paid = w.accept(t, "open", body()).header.Get("Location"), w.captured(t, "paid")
	const nowhere = "/v1/charges/ch_00000000000000000000000000000000"
	none := rows(t, w.db)
	for _, test := range []struct {
		call call
		kind string // of the problem; "" where it is accepted
	}{
		{post("a", body()), ""},
		{to(open+"/cancel", "b", ""), ""},
		{to(paid+"/refunds", "c", `{"amount":300}`), ""},
		{to(nowhere+"/cancel", "d", ""), "/problems/not-found"},
		{to(nowhere+"/refunds", "e", `{"amount":1}`), "/problems/not-found"},
		{to(paid+"/cancel", "f", ""), "/problems/conflict"},
		{to(open+"/refunds", "g", `{"amount":1}`), "/problems/conflict"},
		{to(paid+"/refunds", "h", `{"amount":1701}`), "/problems/refund-exceeds-captured"},
	} {
		a := w.send(t, test.call)
		calls, answers = append(calls, test.call), append(answers, a)
		if a.header.Get("Idempotency-Expires") == "" || (a.header.Get("Location") != "") != (test.kind == "") {
			t.Fatalf("%s: status %d: %v %s", test.call.path, a.status, a.header, a.body)
		}
		if test.kind != "" && wantProblem(t, a, test.kind).RetryWith != "new-key" {
			t.Errorf("want another key for another try: %s", a.body)
		}
	}
	wantRows(t, w.db, none, map[string]int64{"idempotency_keys": 8, "ledger_events": 3, "ledger_postings": 2, "outbox": 3})
	return calls, answers, open, paid
}

// Whatever has become of the charges since, a key has the answer that it had.
func TestReplay_repeatsEveryStoredAnswer(t *testing.T) {
	t.Parallel()
	w := serve(t)
	calls, answers, open, captured := w.outcomes(t)
	w.happen(t, open, paid("pi_open")) // now the refund that was refused could be accepted
	w.happen(t, captured, returned(strings.TrimPrefix(answers[2].header.Get("Location"), captured+"/refunds/")))
	before := rows(t, w.db)
	for i, c := range calls {
		wantReplay(t, answers[i], w.send(t, c))
	}
	wantRows(t, w.db, before, nil)
}

func TestExpiredKey_isGone(t *testing.T) {
	testrun.Long(t, "it sends many requests")
	t.Parallel()
	w := serve(t)
	calls, answers, _, _ := w.outcomes(t)
	testdb.Exec(t, w.db.Pool(), `update idempotency_keys set expires_at = clock_timestamp()`)
	before := rows(t, w.db)
	for _, deleted := range []bool{false, true} {
		if deleted {
			_, err := idempotency.ExpireKeys(t.Context(), w.db, 100)
			testdb.Must(t, err)
		}
		for i, c := range calls {
			a := w.send(t, c)
			wantProblem(t, a, "/problems/idempotency-key-expired")
			testrun.Same(t, c.path+": Location", answers[i].header.Get("Location"), a.header.Get("Location"))
			if end := a.header.Get("Idempotency-Expires"); end == "" || end == answers[i].header.Get("Idempotency-Expires") {
				t.Errorf("%s: Idempotency-Expires is still %q", c.path, end)
			}
		}
		// The tombstone knows the request's fingerprint and where its answer is, and no member of it.
		wantPointers(t, wantProblem(t, w.send(t, post("a", body("amount", "1"))), "/problems/idempotency-key-reused"))
		location := answers[0].header.Get("Location")
		if uses := data(t, w.send(t, get("/v1/idempotency-keys/a"))); len(uses) != 1 || uses[0]["location"] != location {
			t.Errorf("deleted %t: the key led to %v, want %s", deleted, uses, location)
		}
		wantRows(t, w.db, before, nil)
	}
}

// TestOneChargePerOrder: a second key of an order is answered 409 with the order's charge, of one
// merchant by its account, of all by the setting. intake.TestAcceptCharge_onceForEachOrder has the rule.
func TestOneChargePerOrder(t *testing.T) {
	t.Parallel()
	for _, ofAll := range []bool{false, true} {
		w := serve(t, func(api *httpapi.Config) { api.OneChargePerOrder = ofAll })
		testdb.Exec(t, w.db.Pool(), fmt.Sprintf(`update merchants set one_charge_per_order = %t where merchant_id = 'acme'`, !ofAll))
		first := w.accept(t, "first", body()).header.Get("Location")
		for range 2 { // the answer stays
			a := w.send(t, post("second", body()))
			charge := readProblem(t, a).Charge
			if a.header.Del("Idempotent-Replayed"); charge == nil || charge.ID != idOf(first) || charge.Status != domain.Pending {
				t.Errorf("the charge of the order is %+v", charge)
			}
			wantProblem(t, a, "/problems/order-taken")
			w.accepted(t, to(first+"/cancel", "cancel", ""))
		}
		w.accept(t, "other", body("order_id", `"another"`))
	}
}

// TestKeyInFlight_isAnsweredByPolicy, unless the request prefers to wait for its rival.
func TestKeyInFlight_isAnsweredByPolicy(t *testing.T) {
	testrun.Long(t, "it has a database for each case")
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
				if a.header.Get("Idempotency-Key") != "key" || a.header.Get("Location")+a.header.Get("Idempotent-Replayed")+a.header.Get("Idempotency-Expires") != "" {
					t.Errorf("%s: headers %v", r.name, a.header)
				}
				if status != http.StatusAccepted {
					wantStatus(t, a, status)
					wantProblem(t, a, "/problems/idempotency-key-in-use")
				} else if a.status != status || a.body != "{}" || a.header.Get("Retry-After") != "1" {
					t.Errorf("%s: status %d, headers %v: %s", r.name, a.status, a.header, a.body)
				}
				wantRows(t, db, before, nil)
				patient := w.sendAll(t, r.under("key").with("Prefer", "wait=10"))
				testrun.Blocked(t, db, 1)
				testdb.Must(t, held.Rollback(t.Context()))
				if a := <-patient; a.status != http.StatusAccepted || a.header.Get("Location")+a.body == "{}" {
					t.Errorf("%s: the patient one is answered %d, %v: %s", r.name, a.status, a.header, a.body)
				}
			}
		})
	}
}

// TestKeys_listTheirUses, oldest first, of the caller's own key, however the path spells it.
func TestKeys_listTheirUses(t *testing.T) {
	t.Parallel()
	w := serve(t)
	first := w.accept(t, "other", body()).header.Get("Location")
	const key = `"a/ \\?,;c"`
	for _, r := range []call{to(first+"/cancel", key, ""), post(key, body()), to(first+"/refunds", key, `{}`)} {
		w.send(t, r)
	}
	used := "/v1/idempotency-keys/" + url.PathEscape(`a/ \?,;c`)
	for _, path := range []string{used, "/v1/idempotency-keys/" + url.PathEscape(key)} {
		var got []string
		for _, use := range data(t, w.send(t, get(path))) {
			got = append(got, fmt.Sprint(use["operation"], " ", use["status_code"]))
		}
		want := []string{"POST /v1/charges/:id/cancel 202", "POST /v1/charges 202", "POST /v1/charges/:id/refunds 409"}
		testrun.Same(t, "the uses", want, got)
	}
	for _, unused := range []call{get(used).as(globexKey), get("/v1/idempotency-keys/%00"), get("/v1/idempotency-keys/" + strings.Repeat("k", 256))} {
		wantProblem(t, w.send(t, unused), "/problems/not-found")
	}
}

func abandon(key string) call { return to("/v1/idempotency-keys/"+key+"/abandon", "", "") }

// wantAbandoned gives the key up. charge is the status of the charge that was accepted under
// it, or "".
func (w *world) wantAbandoned(t *testing.T, key, charge string) {
	t.Helper()
	a := w.send(t, abandon(key))
	var got struct {
		Abandoned bool
		Charge    struct{ Status string }
	}
	testdb.Must(t, json.Unmarshal([]byte(a.body), &got))
	if a.status != http.StatusOK || got.Abandoned != (charge == "") || got.Charge.Status != charge {
		t.Errorf("%s: status %d: %s", key, a.status, a.body)
	}
}

func TestAbandon(t *testing.T) {
	testrun.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := serve(t)
	forget := func() {
		testdb.Exec(t, w.db.Pool(), `update idempotency_keys set body = null, request = null, expires_at = clock_timestamp()`)
	}

	// A free key is taken.
	before := rows(t, w.db)
	w.wantAbandoned(t, "given-up", "")
	w.wantAbandoned(t, "given-up", "")
	for _, request := range []string{body(), body(), body("amount", "1000")} {
		a := w.send(t, post("given-up", request))
		if a.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("headers: %v", a.header)
		}
		a.header.Del("Idempotent-Replayed")
		wantProblem(t, a, "/problems/idempotency-key-abandoned")
	}
	wantRows(t, w.db, before, map[string]int64{"idempotency_keys": 1})
	forget()
	w.wantAbandoned(t, "given-up", "")
	wantProblem(t, w.send(t, post("given-up", body())), "/problems/idempotency-key-expired")
	w.accepted(t, post("given-up", body()).as(globexKey))

	// A charge that is open is canceled, once.
	location := w.accept(t, `"a b"`, body()).header.Get("Location")
	before = rows(t, w.db)
	w.wantAbandoned(t, "a%20b", "pending")
	w.wantAbandoned(t, `"a%20b"`, "pending")
	wantRows(t, w.db, before, map[string]int64{"idempotency_keys": 1, "ledger_events": 1, "outbox": 1})
	report, err := audit.Run(t.Context(), w.db.Pool())
	testdb.Must(t, err)
	for _, check := range report.Checks {
		if check.Violated > 0 {
			t.Errorf("%s: %v", check.Name, check.Examples)
		}
	}
	w.happen(t, location, func(c domain.Charge) []domain.Event { return c.Fail(*c.Cancellation(time.Time{})) })
	w.wantAbandoned(t, "a%20b", "failed")
	wantProblem(t, w.send(t, abandon("a%00b")), "/problems/idempotency-key-invalid")

	// A charge that has its outcome stays.
	w.captured(t, "key")
	before = rows(t, w.db)
	w.wantAbandoned(t, "key", "succeeded")
	forget()
	w.wantAbandoned(t, "key", "succeeded")
	wantRows(t, w.db, before, map[string]int64{"idempotency_keys": 1})

	// Of requests at the same time one alone takes the key.
	for n := range 20 {
		key := strconv.Itoa(n)
		answers, charge := w.sendAll(t, post(key, body()), abandon(key), post(key, body()), abandon(key)), ""
		for range 4 {
			if a := <-answers; a.status == http.StatusAccepted {
				charge = "pending"
			}
		}
		w.insist(t, abandon(key))
		w.wantAbandoned(t, key, charge)
	}
}
