package httpapi_test

import (
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func TestMalformedBody(t *testing.T) {
	pgtest.Long(t, "it sends many bodies")
	t.Parallel()
	w := serve(t)
	before := rows(t, w.db)
	for _, test := range []struct {
		name, body string
		pointers   []string
	}{
		{"nothing", "", nil},
		{"white space", " \n", nil},
		{"not JSON", "order_id=order-1&amount=2000", nil},
		{"not finished", `{"order_id":"order-1"`, nil},
		{"a trailing comma", `{"order_id":"order-1",}`, nil},
		{"a comment", body() + "// paid", nil},
		{"a byte order mark", "\xef\xbb\xbf" + body(), nil},
		{"trailing data", body() + "x", nil},
		{"two objects", body() + body(), nil},
		{"a trailing NUL", body() + "\x00", nil},
		{"null", "null", nil},
		{"an array", "[" + body() + "]", nil},
		{"a string", `"order-1"`, nil},
		{"a number", "1", nil},
		{"a boolean", "true", nil},

		{"a repeated member", `{"amount":1,"amount":2000}`, nil},
		{"a member repeated by an escape", `{"amount":1,"\u0061mount":2000}`, nil},
		{"a repeated member of an item", body("items", `[{"sku":"mug","sku":"tshirt","quantity":1}]`), nil},
		{"a repeated metadata name", body("metadata", `{"a":"b","a":"b"}`), nil},
		{"an unknown member", body("tip", "1"), nil},
		{"an unknown member that is null", body("tip", "null"), nil},
		{"an unknown member of an item", body("items", `[{"sku":"mug","quantity":1,"price":1}]`), nil},
		{"a member in upper case", body("amount", "", "AMOUNT", "2000"), nil},
		{"a member folded onto another", body("Amount", "1"), nil},
		{"a member by Unicode folding", body("payment_method", "", "\u212aey", "1"), nil},
		{"an item's member in upper case", body("items", `[{"SKU":"mug","quantity":1}]`), nil},

		{"order_id a number", body("order_id", "1"), []string{"/order_id"}},
		{"order_id a list", body("order_id", `["a"]`), []string{"/order_id"}},
		{"currency a boolean", body("currency", "true"), []string{"/currency"}},
		{"payment_method an object", body("payment_method", `{}`), []string{"/payment_method"}},
		{"description a number", body("description", "1"), []string{"/description"}},
		{"amount a string", body("amount", `"2000"`), []string{"/amount"}},
		{"amount a boolean", body("amount", "true"), []string{"/amount"}},
		{"amount a list", body("amount", "[2000]"), []string{"/amount"}},
		{"amount 1.0", body("amount", "1.0"), []string{"/amount"}},
		{"amount 1.5", body("amount", "1.5"), []string{"/amount"}},
		{"amount 1e3", body("amount", "1e3"), []string{"/amount"}},
		{"amount beyond 64 bits", body("amount", "9223372036854775808"), []string{"/amount"}},
		{"amount below 64 bits", body("amount", "-9223372036854775809"), []string{"/amount"}},
		{"amount of 400 digits", body("amount", strings.Repeat("9", 400)), []string{"/amount"}},
		{"amount with a leading zero", body("amount", "01"), nil},
		{"amount with a plus", body("amount", "+1"), nil},
		{"amount hexadecimal", body("amount", "0x1"), nil},
		{"amount NaN", body("amount", "NaN"), nil},
		{"items an object", body("items", "{}"), []string{"/items"}},
		{"items a string", body("items", `"tshirt"`), []string{"/items"}},
		{"an item a string", body("items", `["tshirt"]`), []string{"/items/0"}},
		{"a SKU a number", body("items", `[{"sku":"mug","quantity":1},{"sku":1,"quantity":1}]`), []string{"/items/1/sku"}},
		{"a quantity a string", body("items", `[{"sku":"mug","quantity":"1"}]`), []string{"/items/0/quantity"}},
		{"a quantity 1.0", body("items", `[{"sku":"mug","quantity":1.0}]`), []string{"/items/0/quantity"}},
		{"a quantity beyond 64 bits", body("items", `[{"sku":"mug","quantity":1e19}]`), []string{"/items/0/quantity"}},
		{"metadata a list", body("metadata", "[]"), []string{"/metadata"}},
		{"a metadata value a number", body("metadata", `{"a":"b","n/1":1}`), []string{"/metadata/n~11"}},
		{"a metadata value an object", body("metadata", `{"a":{}}`), []string{"/metadata/a"}},
		{"deep nesting", body("metadata", strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000)), []string{"/metadata/a"}},
		{"deep nesting from the start", strings.Repeat("[", 60000), nil},

		{"invalid UTF-8 in a value", body("description", "\"\xff\""), nil},
		{"invalid UTF-8 in a name", body("metadata", "{\"\xc3\x28\":\"b\"}"), nil},
		{"a surrogate in UTF-8", body("description", "\"\xed\xa0\x80\""), nil},
		{"UTF-16", "\xff\xfe{\x00}\x00", nil},
		{"half a surrogate pair", body("description", `"\ud800"`), nil},
		{"a surrogate pair the wrong way round", body("description", `"\ude00\ud83d"`), nil},
		{"a raw NUL", body("description", "\"a\x00b\""), nil},
		{"a raw line end in a string", body("description", "\"a\nb\""), nil},
		{"a NUL in order_id", body("order_id", `"\u0000"`), nil},
		{"a NUL in currency", body("currency", `"US\u0000"`), nil},
		{"a NUL in payment_method", body("payment_method", `"pm\u0000"`), nil},
		{"a NUL in description", body("description", `"a\u0000"`), nil},
		{"a NUL in a SKU", body("items", `[{"sku":"\u0000","quantity":1}]`), nil},
		{"a NUL in a metadata value", body("metadata", `{"a":"\u0000"}`), nil},
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
