package httpapi_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

const maxBody = 65536 // bytes

// padded is a body of so many bytes.
func padded(body string, size int) string { return body + strings.Repeat(" ", size-len(body)) }

// attempt is a request, which may be one too many for the rate of its merchant.
type attempt struct {
	call

	over bool
}

// check is one that a request meets: ways to break it, and the problem that is answered.
type check struct {
	problem string
	not     string // the operation that does not have it
	ways    []func(*attempt)
}

func header(name string, values ...string) func(*attempt) {
	return func(a *attempt) { a.call = a.with(name, values...) }
}

func headers(name string, values ...string) (ways []func(*attempt)) {
	for _, value := range values {
		ways = append(ways, header(name, value))
	}
	return ways
}

// checks are those of a request under a key, in their order. Breaking one leaves the others as they are.
func checks(reader string) []check {
	unknown := "Bearer " + merchants.NewKey()
	media := headers("Content-Type", "text/plain", "application/json; charset", "application/json, application/json", "application/json; charset=utf-16")
	keys := headers("Idempotency-Key", "", "a b", "a,a", "a;v=1", `"`, strings.Repeat("k", 256))
	return []check{
		{"/problems/too-large", "", []func(*attempt){func(a *attempt) { a.body = padded(a.body, maxBody+1) }}},
		{"/problems/unauthorized", "", []func(*attempt){header("Authorization", unknown), header("Authorization")}},
		{"/problems/rate-limited", "", []func(*attempt){func(a *attempt) { a.over = true }}},
		{"/problems/method-not-allowed", "", []func(*attempt){func(a *attempt) { a.method = http.MethodPut }}},
		{"/problems/forbidden", "", headers("Authorization", "Bearer "+reader)},
		{"/problems/unsupported-media-type", "", append(media, header("Content-Type"),
			header("Content-Type", "application/json", "application/json"), header("Content-Encoding", "gzip"))},
		{"/problems/malformed", "", []func(*attempt){func(a *attempt) { a.body = a.body[:len(a.body)-1] }, func(a *attempt) { a.body = `{"tip":1}` }}},
		{"/problems/validation", "POST /v1/charges/:id/cancel", []func(*attempt){func(a *attempt) { a.body = `{"amount":0}` }}},
		{"/problems/not-found", "POST /v1/charges", []func(*attempt){func(a *attempt) { a.path = strings.Replace(a.path, "/ch_", "/%00ch_", 1) }}},
		{"/problems/idempotency-key-missing", "", []func(*attempt){header("Idempotency-Key")}},
		{"/problems/idempotency-key-invalid", "", append(keys, header("Idempotency-Key", "a", "b"))}, // idempotency.ParseKey judges what is one
		{"/problems/idempotency-key-reused", "", headers("Idempotency-Key", "of-another-request")},
	}
}

// TestLayers_refuseBeforeTheKey: of two things that are wrong with a request the earlier check is
// answered. What a check refuses is not stored and leaves the key free, and a key that has its
// answer does not get past it.
func TestLayers_refuseBeforeTheKey(t *testing.T) {
	testrun.Long(t, "it asks every route")
	t.Parallel()
	c := &clock{}
	w := serve(t, func(api *httpapi.Config) { api.Limits.PerSecond, api.Now = 4, c.now })
	reader := w.keyFor(t, merchants.ChargesRead)
	for _, r := range w.routes(t) {
		other := strings.Replace(r.path, "ch_", "ch_x", 1)
		if a := w.send(t, to(other, "of-another-request", strings.Replace(r.body, "2000", "2001", 1))); a.status >= 500 {
			t.Fatal(a.body)
		}
		var all []check
		for _, check := range checks(reader) {
			if check.not != r.operation {
				all = append(all, check)
			}
		}
		refused := func(first check, breaks ...func(*attempt)) {
			t.Helper()
			a := attempt{call: r.under("key")}
			for _, brk := range breaks {
				brk(&a)
			}
			c.pass(time.Second)
			for range map[bool]int{true: 4}[a.over] {
				w.send(t, get("/v1/nothing").with("Authorization", a.header.Values("Authorization")...))
			}
			answer := w.send(t, a.call)
			wantProblem(t, answer, first.problem)
			links := map[string]string{"/problems/idempotency-key-missing": `</openapi.yaml>; rel="describedby"`}
			testrun.Same(t, first.problem+": Link", links[first.problem], answer.header.Get("Link"))
			stored := answer.header.Get("Idempotency-Expires") + answer.header.Get("Location")
			if key := answer.header.Get("Idempotency-Key"); first.problem != "/problems/idempotency-key-reused" && key+stored != "" {
				t.Errorf("%s: headers %v", first.problem, answer.header)
			}
		}
		before := rows(t, w.db)
		for _, used := range []bool{false, true} {
			for i, check := range all {
				for _, way := range check.ways {
					refused(check, way)
				}
				for _, later := range all[i+1:] {
					refused(check, later.ways[0], check.ways[0])
				}
			}
			wantRows(t, w.db, before, nil)
			if c.pass(time.Second); used {
				w.accepted(t, r.under("key"))
				continue
			}
			w.accepted(t, r.under("key"))
			before = rows(t, w.db)
		}
	}
	c.pass(time.Second)
	w.accept(t, "longest", padded(body(), maxBody))
	for i, kind := range []string{"Application/JSON;charset=UTF-8", `application/json; charset="utf-8"; profile=x`, "application/json; charset=utf8"} {
		w.accepted(t, post(fmt.Sprint("key-", i), body()).with("Content-Type", kind).with("Content-Encoding", "identity"))
	}
}

// needed is the scope of every operation of the contract, "" where none is asked for.
func needed(t *testing.T) map[string]string {
	t.Helper()
	scopes := map[string]string{}
	operations(theContract(t), func(method, path string, o *v3.Operation, _ []*v3.Parameter) {
		if o.Security == nil {
			t.Errorf("%s %s does not say what it needs", method, path)
		}
		scopes[method+" "+path] = ""
		for _, requirement := range o.Security {
			for _, of := range requirement.Requirements.FromOldest() {
				scopes[method+" "+path] += strings.Join(of, " ")
			}
		}
	})
	return scopes
}

// request calls a route for things that are not there, without an idempotency
// key: it changes nothing where it is admitted.
func request(route string) call {
	method, path, _ := strings.Cut(route, " ")
	path = regexp.MustCompile(`{[a-z]+}`).ReplaceAllString(path, "1")
	return to(path, "", "").with("Idempotency-Key").like(method)
}

func TestEveryRoute_needsItsScope(t *testing.T) {
	testrun.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := serve(t)
	before, routes := rows(t, w.db), needed(t)
	for route, needs := range maps.Clone(routes) { // HEAD needs what GET needs
		routes[strings.Replace(route, "GET ", "HEAD ", 1)] = needs
	}
	for _, scope := range merchants.Scopes() {
		alone := w.keyFor(t, scope)
		all := w.keyFor(t, slices.DeleteFunc(merchants.Scopes(), func(s merchants.Scope) bool { return s == scope })...)
		before["api_keys"] += 2
		before["operator_actions"] += 2
		for route, needs := range routes {
			if needs == "" {
				continue
			}
			for key, lets := range map[string]bool{alone: needs == string(scope), all: needs != string(scope)} {
				a := w.send(t, request(route).as(key))
				if a.status == http.StatusUnauthorized || lets == (a.status == http.StatusForbidden) {
					t.Errorf("%s by a key with the scope %s alone (%t) or all but it: status %d: %s", route, scope, key == alone, a.status, a.body)
				}
				want := fmt.Sprintf(`Bearer error="insufficient_scope", scope=%q`, needs)
				if says := a.header.Get("WWW-Authenticate"); !lets && says != want {
					t.Errorf("%s: WWW-Authenticate is %s, want %s", route, says, want)
				}
				if !lets && !strings.HasPrefix(route, "HEAD") && !strings.Contains(wantProblem(t, a, "/problems/forbidden").Detail, needs) {
					t.Errorf("%s: it does not say which scope is missing: %s", route, a.body)
				}
			}
		}
	}
	wantRows(t, w.db, before, map[string]int64{"idempotency_keys": 1}) // that was given up
}

// TestInvalidValues: what is wrong is named, and never echoed. TestContract_acceptsTheSameBodies has
// the bounds.
func TestInvalidValues(t *testing.T) {
	t.Parallel()
	w := serve(t)
	before := rows(t, w.db)
	const malformed, invalid, card = "/problems/malformed", "/problems/validation", "4242424242424242"
	for _, test := range []struct{ name, body, kind, pointers string }{
		{"not JSON", "hunter2", malformed, ""},
		{"trailing data", body() + "x", malformed, ""},
		{"a repeated member", `{"amount":1,"amount":2000}`, malformed, ""},
		{"a member repeated by an escape", `{"amount":1,"\u0061mount":2000}`, malformed, ""},
		{"an unknown member that may be data", body("hunter2-hunter2", "1"), malformed, ""},
		{"amount 1.0", body("amount", "1.0"), malformed, "/amount"},
		{"amount 1e3", body("amount", "1e3"), malformed, "/amount"},
		{"amount with a leading zero", body("amount", "01"), malformed, ""},
		{"a metadata value a number", body("metadata", `{"a":"b","n/1":1}`), malformed, "/metadata/n~11"},
		{"deep nesting", body("metadata", strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000)), malformed, "/metadata/a"},
		{"an escape that is none", body("description", `"hunter2\x"`), malformed, ""},
		{"invalid UTF-8 in a value", body("description", "\"\xff\""), malformed, ""},
		{"half a surrogate pair", body("description", `"\ud800"`), malformed, ""},
		{"a NUL behind a backslash", body("description", `"\\\u0000"`), malformed, ""},
		{"a NUL beside a wrong value", body("amount", "0", "description", `"\u0000"`), malformed, ""},
		{"a card number as a name", body("metadata", `{"`+card+`":1}`), malformed, ""},

		{"nothing given", "{}", invalid, "/order_id /payment_method /amount /currency"},
		{"currency that is no more", body("currency", `"ANG"`), invalid, "/currency"},
		{"a SKU repeated", body("items", `[{"sku":"a","quantity":1},{"sku":"b","quantity":1},{"sku":"a","quantity":2}]`), invalid, "/items/2/sku"},
		{"a metadata name with a slash and a tilde", body("metadata", `{"a/b~c":`+text(501)+`}`), invalid, "/metadata/a~1b~0c"},
		{
			"several members", body("amount", "0", "currency", `"hunter2"`, "items", `[{"sku":"","quantity":0}]`),
			invalid, "/amount /currency /items/0/sku /items/0/quantity",
		},
		{"an amount that the provider cannot move", body("amount", "5124", "currency", `"KWD"`), invalid, "/amount"},
		{"a card number as a payment method", body("payment_method", `"`+card+`"`), invalid, "/payment_method"},
		{"a card number as a customer", body("customer", `"`+card+`"`), invalid, "/customer"},
		{"a card number in a description", body("description", `"card `+card+`, 12/30"`), invalid, "/description"},
		{"a card number as a metadata value", body("metadata", `{"card":"`+card+`"}`), invalid, "/metadata/card"},
		{"a card number as a metadata name", body("metadata", `{"`+card+`":"card"}`), invalid, "/metadata"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, post("key-1", test.body))
			wantPointers(t, wantProblem(t, a, test.kind), strings.Fields(test.pointers)...)
			if strings.Contains(a.body, "4242") || strings.Contains(a.body, "hunter2") {
				t.Errorf("the request is echoed: %s", a.body)
			}
		})
	}
	wantRows(t, w.db, before, nil)

	for i, text := range []string{
		"'; drop table ledger_events; --", "\u0001\u001f\n\t\u007f",
		"\uffff\ufffe\u2028", card[:15] + "1", `\u0000 \\u0000`,
	} { // these only look dangerous
		quoted, err := json.Marshal(text)
		testdb.Must(t, err)
		accepted := w.accept(t, fmt.Sprint("text-", i), body("description", string(quoted), "order_id", string(quoted)))
		if read := w.send(t, get(accepted.header.Get("Location"))); read.body != accepted.body || members(t, read.body)["order_id"] != text {
			t.Errorf("accepted and read differ:\n%s%s", accepted.body, read.body)
		}
	}

	// Whether a refund can be moved depends on the charge, and its refusal uses no key.
	charge := w.accept(t, "dinar", body("currency", `"KWD"`)).header.Get("Location")
	w.happen(t, charge, paid("pi_1"))
	wantPointers(t, wantProblem(t, w.send(t, to(charge+"/refunds", "refund", `{"amount":1005}`)), invalid), "/amount")
	wantProblem(t, w.send(t, to(charge+"/refunds", "refund", `{"amount":10,"reason":"`+card+`"}`)), invalid)
	w.accepted(t, to(charge+"/refunds", "refund", `{"amount":1000}`))
}

func TestNotFound(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.accept(t, "key-1", body()).header.Get("Location")
	for _, path := range []string{
		"/", "/v1/nothing", "/v1/balances/", "/v1/charges/%2e%2e/balances", charge + "/refunds/re_1", strings.Replace(charge, "/ch_", "/CH_", 1),
		"/v1/charges/%00", "/v1/charges/%FF", "/v1/charges/a%2fevents", "/v1/charges/a%0d%0aSet-Cookie:%20a=b", "/v1/charges/" + strings.Repeat("c", 8000),
	} {
		if p := wantProblem(t, w.send(t, get(path)), "/problems/not-found"); p.Instance != path {
			t.Errorf("instance is %q, want %q", p.Instance, path)
		}
	}
	for _, path := range []string{"/v1/idempotency-keys/4242424242424242", "/v1/charges/4242424242424242/refunds"} {
		card := w.send(t, get(path))
		if p := readProblem(t, card); p.Type != "/problems/not-found" || strings.Contains(card.body, "4242") || p.Instance != "" {
			t.Errorf("the card number is repeated: %s", card.body)
		}
	}
	spelled := strings.Replace(charge, "/ch_", "/%63h_", 1)
	if a, b := w.send(t, get(charge)), w.send(t, get(spelled)); b.status != http.StatusOK || a.body != b.body {
		t.Errorf("a path is not decoded: status %d: %s", b.status, b.body)
	}
	first := w.accepted(t, to(spelled+"/cancel", "cancel", ""))
	wantReplay(t, first, w.send(t, to(charge+"/cancel", "cancel", "")))
}

// TestHoldsCard: the networks in use, then separators and neighbours.
func TestHoldsCard(t *testing.T) {
	t.Parallel()
	lengths := map[string][]int{ // of each network's first and last prefixes, and of their neighbours
		"4": {16, 19}, "50": nil, "51": {16}, "55": {16}, "56": nil, "2220": nil, "2221": {16}, "2720": {16}, "2721": nil,
		"33": nil, "34": {15}, "35": nil, "37": {15}, "39": nil, "6010": nil, "6011": {16, 17, 18, 19}, "6012": nil,
		"643": nil, "644": {16, 17, 18, 19}, "649": {16, 17, 18, 19}, "65": {16, 17, 18, 19}, "66": nil,
		"299": nil, "300": {14}, "305": {14}, "306": nil, "36": {14}, "38": {14},
		"3527": nil, "3528": {16, 17, 18, 19}, "3589": {16, 17, 18, 19}, "3590": nil, "62": {16, 17, 18, 19}, "63": nil,
		"1": nil, "9": nil, "2026": nil, "978": nil, // timestamps, days and EAN-13
	}
	for prefix, want := range lengths {
		for digits := 12; digits <= 20; digits++ {
			var cards []string // the last digit is Luhn's check of the others
			for last := range 10 {
				number := prefix + strings.Repeat("0", digits-len(prefix)-1) + strconv.Itoa(last)
				if httpapi.HoldsCard(number) {
					cards = append(cards, number)
				}
			}
			if len(cards) > 1 || (len(cards) == 1) != slices.Contains(want, digits) {
				t.Errorf("%s, %d digits: these are taken for card numbers: %q", prefix, digits, cards)
			}
		}
	}
	for text, want := range map[string]bool{
		"4242 4242 4242 4242": true, "4242-4242-4242-4242": true, "4242 4242-42424242": true, "4 2 4 2 4 2 4 2 4 2 4 2 4 2 4 2": true,
		"4242 4242 4242 4242 12/30": true, "no. 1-4242-4242-4242-4242.": true, "(3782 822463 10005)": true, "_4242424242424242_": true,
		"4242424242424242,5555555555554444": true, "42424242-4242-4242-8242-abcdefabcdef": true, "\u00a04242\u00a04242\t4242\u20074242\u00a0": true,
		"pan4242424242424242": false, "4242424242424242x": false, "é4242424242424242": false, "14242424242424242": false, "4242424242424242 1": true,
		"4242  4242 4242 4242": false, "4242.4242.4242.4242": false, "4242_4242_4242_4242": false, "4242/4242/4242/4242": false,
		"4242 - 4242 4242 4242": false, "４２４２４２４２４２４２４２４２": false, "4242a4242b4242c4242": false, "": false,
	} {
		if got := httpapi.HoldsCard(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// FuzzDecode reads any body as that of a charge. PostgreSQL can store what is accepted. The canonical form, by
// which a key recognizes its request, is its own canonical form.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", "null", "{}", "[]", body(), body("items", items(3), "metadata", `{"":"","a":null}`, "description", `"\u0041\uffff"`),
		body("description", `"\ud800"`), body("description", "\"\xff\""), body("metadata", `{"\u0000":"\\\u0000"}`), body("amount", "1e3"),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		canonical, err := httpapi.Canonical(raw)
		if err != nil {
			return
		}
		again, err := httpapi.Canonical(canonical)
		holdsNUL := strings.Contains(strings.ReplaceAll(canonical, `\\`, ""), `\u0000`)
		if err != nil || again != canonical || holdsNUL || !utf8.ValidString(canonical) {
			t.Errorf("%q has the canonical form %q, which has %q, %v", raw, canonical, again, err)
		}
	})
}
