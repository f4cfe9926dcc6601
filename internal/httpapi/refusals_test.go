package httpapi_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testdb"
)

// refusal is a body that is refused, and the members that are named.
type refusal struct{ name, body, pointers string }

// wantRefused sends each body to a path. None leaves a row.
func (w *world) wantRefused(t *testing.T, path, kind string, all []refusal) {
	t.Helper()
	before := rows(t, w.db)
	for _, test := range all {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, to(path, "key-1", test.body))
			wantPointers(t, wantProblem(t, a, kind), strings.Fields(test.pointers)...)
			if strings.Contains(a.body, "4242") || strings.Contains(a.body, "hunter2") {
				t.Errorf("the request is echoed: %s", a.body)
			}
		})
	}
	wantRows(t, w.db, before, nil)
}

func TestMalformedBody(t *testing.T) {
	testdb.Long(t, "it sends many bodies")
	t.Parallel()
	serve(t).wantRefused(t, "/v1/charges", "/problems/malformed", []refusal{
		{"nothing", "", ""},
		{"not JSON", "hunter2", ""},
		{"trailing data", body() + "x", ""},
		{"null", "null", ""},

		{"a repeated member", `{"amount":1,"amount":2000}`, ""},
		{"a member repeated by an escape", `{"amount":1,"\u0061mount":2000}`, ""},
		{"a repeated metadata name", body("metadata", `{"a":"b","a":"b"}`), ""},
		{"an unknown member", body("tip", "1"), "/tip"},
		{"an unknown member of an item", body("items", `[{"sku":"mug","quantity":1,"size":1}]`), "/items/0/size"},
		{"an unknown member that may be data", body("hunter2-hunter2", "1"), ""},
		{"a member folded onto another", body("Amount", "1"), "/Amount"},

		{"amount a text", body("amount", `"hunter2"`), "/amount"},
		{"amount 1.0", body("amount", "1.0"), "/amount"},
		{"amount 1e3", body("amount", "1e3"), "/amount"},
		{"amount with a leading zero", body("amount", "01"), ""},
		{"a SKU a number", body("items", `[{"sku":"mug","quantity":1},{"sku":1,"quantity":1}]`), "/items/1/sku"},
		{"a metadata value a number", body("metadata", `{"a":"b","n/1":1}`), "/metadata/n~11"},
		{"deep nesting", body("metadata", strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000)), "/metadata/a"},
		{"deep nesting from the start", strings.Repeat("[", 60000), ""},

		{"an escape that is none", body("description", `"hunter2\x"`), ""},
		{"invalid UTF-8 in a value", body("description", "\"\xff\""), ""},
		{"half a surrogate pair", body("description", `"\ud800"`), ""},
		{"a raw NUL", body("description", "\"a\x00b\""), ""},
		{"a NUL beside a wrong value", body("amount", "0", "description", `"\u0000"`), ""},
		{"a card number as a name", body("metadata", `{"4242424242424242":1}`), ""},
	})
}

func TestInvalidValues(t *testing.T) {
	testdb.Long(t, "it sends many bodies")
	t.Parallel()
	const card = "4242424242424242" // the provider's test number
	serve(t).wantRefused(t, "/v1/charges", "/problems/validation", []refusal{
		{"nothing given", "{}", "/order_id /payment_method /amount /currency"},
		{"currency that is no more", body("currency", `"ANG"`), "/currency"},
		{"a SKU repeated", body("items", `[{"sku":"a","quantity":1},{"sku":"b","quantity":1},{"sku":"a","quantity":2}]`), "/items/2/sku"},
		{"an item null", body("items", "[null]"), "/items/0/sku /items/0/quantity"},
		{"a metadata name of 501 characters", body("metadata", `{`+text(501)+`:"a"}`), "/metadata"},
		{"a metadata name with a slash and a tilde", body("metadata", `{"a/b~c":`+text(501)+`}`), "/metadata/a~1b~0c"},
		{
			"several members", body("amount", "0", "currency", `"hunter2"`, "items", `[{"sku":"","quantity":0}]`),
			"/amount /currency /items/0/sku /items/0/quantity",
		},
		{"a card number as a payment method", body("payment_method", `"`+card+`"`), "/payment_method"},
		{"a card number as a customer", body("customer", `"`+card+`"`), "/customer"},
		{"a customer of 256 characters", body("customer", text(256)), "/customer"},
		{"a card number in a description", body("description", `"card `+card+`, 12/30"`), "/description"},
		{"a card number with spaces that do not break, and a tab", body("description", `"\u00a04242\u00a04242\t4242\u20074242\u00a0"`), "/description"},
		{"a card number as a metadata value", body("metadata", `{"card":"`+card+`"}`), "/metadata/card"},
		{"a card number as a metadata name", body("metadata", `{"`+card+`":"card"}`), "/metadata"},
	})
}

// TestTexts_areKeptAsSent, and other texts that only look dangerous are kept as they are.
func TestTexts_areKeptAsSent(t *testing.T) {
	testdb.Long(t, "it sends many bodies")
	t.Parallel()
	w := serve(t)
	for i, text := range []string{
		"4242424242424241",     // fails the check
		"4242  4242 4242 4242", // two spaces
		"4242.4242.4242.4242",  // as the reference says
		"'; drop table ledger_events; --",
		"\u0001\u001f\n\t\u007f",
		"\uffff\ufffe\u2028", // what Unicode does not define
	} {
		t.Run(text, func(t *testing.T) {
			accepted := w.accept(t, "key-"+strconv.Itoa(i), body("description", quoted(t, text), "order_id", quoted(t, text)))
			if read := w.send(t, get(accepted.header.Get("Location"))); read.body != accepted.body {
				t.Errorf("accepted and read differ:\n%s%s", accepted.body, read.body)
			}
		})
	}
}

func TestAmounts_areRefusedWhereTheProviderCannotMoveThem(t *testing.T) {
	t.Parallel()
	w := serve(t)
	for code, amounts := range map[string][2]string{ // refused, accepted
		"BHD": {"1005", "1010"}, "JOD": {"1", "10"}, "KWD": {"5124", "5120"}, "OMR": {"1009", "1000"}, "TND": {"1001", "1100"},
		"MGA": {"1010", "1100"}, "ISK": {"", "1"}, "UGX": {"", "1"}, "HUF": {"", "1001"}, "TWD": {"", "1001"}, "IQD": {"", "1001"},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			if amounts[0] != "" {
				a := w.send(t, post("charge-"+code, body("amount", amounts[0], "currency", `"`+code+`"`)))
				wantPointers(t, wantProblem(t, a, "/problems/validation"), "/amount")
			}
			w.accept(t, "charge-"+code, body("amount", amounts[1], "currency", `"`+code+`"`))
		})
	}
}

func TestRefunds_ofAmountsThatTheProviderCannotMoveAreRefusedAndUseNoKey(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.accept(t, "charge", body("amount", "2000", "currency", `"KWD"`)).header.Get("Location")
	w.happen(t, charge, paid("pi_1"))
	a := w.send(t, to(charge+"/refunds", "refund", `{"amount":1005}`))
	wantPointers(t, wantProblem(t, a, "/problems/validation"), "/amount")
	for key, refund := range map[string]string{"refund": `{"amount":1000}`, "rest": `{"amount":1000}`} {
		w.accepted(t, to(charge+"/refunds", key, refund))
	}
}

// quoted is a text as JSON.
func quoted(t *testing.T, text string) string {
	t.Helper()
	raw, err := json.Marshal(text)
	testdb.Must(t, err)
	return string(raw)
}

func TestNotFound(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.accept(t, "key-1", body()).header.Get("Location")
	long := strings.Repeat("c", 8000)
	for _, test := range []struct{ name, path string }{
		{"the root", "/"},
		{"an unknown route under /v1", "/v1/nothing"},
		{"a charge that is not there", "/v1/charges/ch_00000000000000000000000000000000"},
		{"a refund that was not requested", charge + "/refunds/re_1"},
		{"a charge's id in upper case", strings.ToUpper(charge[:len("/v1/charges/ch_")]) + charge[len("/v1/charges/ch_"):]},
		{"an id with NUL", "/v1/charges/%00"},
		{"an id that is not UTF-8", "/v1/charges/%FF"},
		{"an id with an encoded slash", "/v1/charges/a%2fevents"},
		{"a line end", "/v1/charges/a%0d%0aSet-Cookie:%20a=b"},
		{"a very long id", "/v1/charges/" + long},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, get(test.path))
			p := wantProblem(t, a, "/problems/not-found")
			if p.Instance != test.path {
				t.Errorf("instance is %q, want %q", p.Instance, test.path)
			}
		})
	}
}
