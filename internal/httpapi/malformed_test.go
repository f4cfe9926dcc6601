package httpapi_test

import (
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testdb"
)

func TestMalformedBody(t *testing.T) {
	testdb.Long(t, "it sends many bodies")
	t.Parallel()
	w := serve(t)
	before := rows(t, w.db)
	for _, test := range []struct {
		name, body string
		pointers   []string
	}{
		{"nothing", "", nil},
		{"not JSON", "order_id=order-1&amount=2000", nil},
		{"a comment", body() + "// paid", nil},
		{"trailing data", body() + "x", nil},
		{"a trailing NUL", body() + "\x00", nil},
		{"null", "null", nil},
		{"an array", "[" + body() + "]", nil},

		{"a repeated member", `{"amount":1,"amount":2000}`, nil},
		{"a member repeated by an escape", `{"amount":1,"\u0061mount":2000}`, nil},
		{"a repeated member of an item", body("items", `[{"sku":"mug","sku":"tshirt","quantity":1}]`), nil},
		{"a repeated metadata name", body("metadata", `{"a":"b","a":"b"}`), nil},
		{"an unknown member", body("tip", "1"), nil},
		{"an unknown member of an item", body("items", `[{"sku":"mug","quantity":1,"price":1}]`), nil},
		{"a member in upper case", body("amount", "", "AMOUNT", "2000"), nil},
		{"a member folded onto another", body("Amount", "1"), nil},

		{"order_id a number", body("order_id", "1"), []string{"/order_id"}},
		{"currency a boolean", body("currency", "true"), []string{"/currency"}},
		{"amount a string", body("amount", `"2000"`), []string{"/amount"}},
		{"amount 1.0", body("amount", "1.0"), []string{"/amount"}},
		{"amount 1e3", body("amount", "1e3"), []string{"/amount"}},
		{"amount beyond 64 bits", body("amount", "9223372036854775808"), []string{"/amount"}},
		{"amount of 400 digits", body("amount", strings.Repeat("9", 400)), []string{"/amount"}},
		{"amount with a leading zero", body("amount", "01"), nil},
		{"amount NaN", body("amount", "NaN"), nil},
		{"items an object", body("items", "{}"), []string{"/items"}},
		{"an item a string", body("items", `["tshirt"]`), []string{"/items/0"}},
		{"a SKU a number", body("items", `[{"sku":"mug","quantity":1},{"sku":1,"quantity":1}]`), []string{"/items/1/sku"}},
		{"a quantity a string", body("items", `[{"sku":"mug","quantity":"1"}]`), []string{"/items/0/quantity"}},
		{"a quantity 1.0", body("items", `[{"sku":"mug","quantity":1.0}]`), []string{"/items/0/quantity"}},
		{"a metadata value a number", body("metadata", `{"a":"b","n/1":1}`), []string{"/metadata/n~11"}},
		{"deep nesting", body("metadata", strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000)), []string{"/metadata/a"}},
		{"deep nesting from the start", strings.Repeat("[", 60000), nil},

		{"invalid UTF-8 in a value", body("description", "\"\xff\""), nil},
		{"a surrogate in UTF-8", body("description", "\"\xed\xa0\x80\""), nil},
		{"half a surrogate pair", body("description", `"\ud800"`), nil},
		{"a raw NUL", body("description", "\"a\x00b\""), nil},
		{"a NUL in order_id", body("order_id", `"\u0000"`), nil},
		{"a NUL in currency", body("currency", `"US\u0000"`), nil},
		{"a NUL in a SKU", body("items", `[{"sku":"\u0000","quantity":1}]`), nil},
		{"a NUL in a metadata name", body("metadata", `{"\u0000":"a"}`), nil},
		{"a NUL beside a wrong value", body("amount", "0", "description", `"\u0000"`), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, post("key-1", test.body))
			wantPointers(t, wantProblem(t, a, "/problems/malformed"), test.pointers...)
			wantRows(t, w.db, before, nil)
		})
	}
}

func TestProblemsDoNotRepeatTheRequest(t *testing.T) {
	t.Parallel()
	w := serve(t)
	const secret = "hunter2-hunter2"
	for _, request := range []string{
		body(secret, "1"),
		body("amount", `"`+secret+`"`),
		body("currency", `"`+secret+`"`),
		body("amount", "0", "order_id", `"`+secret+`"`),
		body("description", `"`+secret+`\x"`),
		secret,
	} {
		a := w.send(t, post("key-1", request))
		if a.status < 400 || a.status > 499 || strings.Contains(a.body, secret) {
			t.Errorf("status %d for %s: %s", a.status, request, a.body)
		}
	}
}
