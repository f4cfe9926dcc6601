package httpapi_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testdb"
)

func TestInvalidValues(t *testing.T) {
	testdb.Long(t, "it sends many bodies")
	t.Parallel()
	w := serve(t)
	before := rows(t, w.db)
	item := func(sku, quantity string) string { return `[{"sku":` + sku + `,"quantity":` + quantity + `}]` }
	for _, test := range []struct {
		name, body string
		pointers   []string
	}{
		{"nothing given", "{}", []string{"/order_id", "/payment_method", "/amount", "/currency"}},
		{"amount missing", body("amount", ""), []string{"/amount"}},
		{"amount 0", body("amount", "0"), []string{"/amount"}},
		{"amount -0", body("amount", "-0"), []string{"/amount"}},
		{"amount one too much", body("amount", "1000000000001"), []string{"/amount"}},
		{"currency missing", body("currency", ""), []string{"/currency"}},
		{"currency empty", body("currency", `""`), []string{"/currency"}},
		{"currency in lower case", body("currency", `"usd"`), []string{"/currency"}},
		{"currency unknown", body("currency", `"XYZ"`), []string{"/currency"}},
		{"currency that is no more", body("currency", `"ANG"`), []string{"/currency"}},
		{"order_id missing", body("order_id", ""), []string{"/order_id"}},
		{"order_id empty", body("order_id", `""`), []string{"/order_id"}},
		{"order_id of 256 characters", body("order_id", text(256)), []string{"/order_id"}},
		{"payment_method missing", body("payment_method", ""), []string{"/payment_method"}},
		{"description of 256 characters", body("description", text(256)), []string{"/description"}},
		{"101 items", body("items", items(101)), []string{"/items"}},
		{"a SKU missing", body("items", `[{"quantity":1},{"quantity":1}]`), []string{"/items/0/sku", "/items/1/sku"}},
		{"a SKU repeated", body("items", `[{"sku":"a","quantity":1},{"sku":"b","quantity":1},{"sku":"a","quantity":2}]`), []string{"/items/2/sku"}},
		{"an item null", body("items", "[null]"), []string{"/items/0/sku", "/items/0/quantity"}},
		{"a quantity missing", body("items", `[{"sku":"mug"}]`), []string{"/items/0/quantity"}},
		{"a quantity 0", body("items", item(`"mug"`, "0")), []string{"/items/0/quantity"}},
		{"a quantity one too much", body("items", item(`"mug"`, "1000001")), []string{"/items/0/quantity"}},
		{"21 metadata pairs", body("metadata", pairs(21)), []string{"/metadata"}},
		{"a metadata name of 501 characters", body("metadata", `{`+text(501)+`:"a"}`), []string{"/metadata"}},
		{"a metadata name with a slash and a tilde", body("metadata", `{"a/b~c":`+text(501)+`}`), []string{"/metadata/a~1b~0c"}},
		{"several metadata values", body("metadata", `{"b":`+text(501)+`,"c":"fine","a":`+text(501)+`}`), []string{"/metadata/a", "/metadata/b"}},
		{"several members", body("amount", "0", "currency", `"usd"`, "items", item(`""`, "0")), []string{"/amount", "/currency", "/items/0/sku", "/items/0/quantity"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, post("key-1", test.body))
			wantPointers(t, wantProblem(t, a, "/problems/validation"), test.pointers...)
			wantRows(t, w.db, before, nil)
		})
	}
}

func TestValuesAtTheBounds(t *testing.T) {
	testdb.Long(t, "it sends many bodies")
	t.Parallel()
	w := serve(t)
	for i, test := range []struct{ name, body string }{
		{"the smallest amount", body("amount", "1")},
		{"the largest amount", body("amount", "1000000000000")},
		{"a currency without minor units", body("currency", `"JPY"`)},
		{"a currency of 2025", body("currency", `"XCG"`)},
		{"strings of 255 characters", body("order_id", text(255), "payment_method", text(255), "description", text(255))},
		{"100 items", body("items", items(100))},
		{"the longest SKU and the largest quantity", body("items", `[{"sku":`+text(255)+`,"quantity":1000000}]`)},
		{"20 metadata pairs", body("metadata", pairs(20))},
		{"metadata of 500 characters", body("metadata", `{`+text(500)+`:`+text(500)+`}`)},
		{"control characters but NUL", body("description", `"\u0001\u001f\n\t\u007f"`)},
		{"what Unicode does not define", body("description", `"\uffff\ufffe\u2028"`)},
		{"SQL", body("order_id", `"'; drop table ledger_events; --"`)},
	} {
		t.Run(test.name, func(t *testing.T) {
			accepted := w.accept(t, "key-"+strconv.Itoa(i), test.body)
			read := w.send(t, get(accepted.header.Get("Location")))
			if read.body != accepted.body {
				t.Errorf("accepted and read differ:\n%s%s", accepted.body, read.body)
			}
		})
	}
}

func TestCardNumbersAreRefused(t *testing.T) {
	testdb.Long(t, "it sends many bodies")
	t.Parallel()
	w := serve(t)
	before := rows(t, w.db)
	const card = "4242424242424242" // the provider's test number
	for _, test := range []struct {
		name, body string
		pointers   []string
	}{
		{"as order_id", body("order_id", `"`+card+`"`), []string{"/order_id"}},
		{"in a description", body("description", `"card `+card+`, 12/30"`), []string{"/description"}},
		{"with spaces", body("description", `"4242 4242 4242 4242 12/30"`), []string{"/description"}},
		{"with dashes", body("description", `"no. 1-4242-4242-4242-4242."`), []string{"/description"}},
		{"with spaces that do not break, and a tab", body("description", `"\u00a04242\u00a04242\t4242\u20074242\u00a0"`), []string{"/description"}},
		{"with dashes of other kinds", body("description", `"4242\u20114242\u20134242\u20144242"`), []string{"/description"}},
		{"of 13 digits", body("description", `"4222222222222"`), []string{"/description"}},
		{"of 19 digits", body("description", `"6304000000000000000"`), []string{"/description"}},
		{"as a SKU", body("items", `[{"sku":"`+card+`","quantity":1}]`), []string{"/items/0/sku"}},
		{"as a metadata value", body("metadata", `{"card":"`+card+`"}`), []string{"/metadata/card"}},
		{"as a metadata name", body("metadata", `{"`+card+`":"card"}`), []string{"/metadata"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, post("key-1", test.body))
			wantPointers(t, wantProblem(t, a, "/problems/validation"), test.pointers...)
			if strings.Contains(a.body, "4242") {
				t.Errorf("the number is echoed: %s", a.body)
			}
			wantRows(t, w.db, before, nil)
		})
	}
	t.Run("as a name in a body that cannot be read", func(t *testing.T) {
		a := w.send(t, post("key-1", body("metadata", `{"`+card+`":1}`)))
		if wantProblem(t, a, "/problems/malformed"); strings.Contains(a.body, card) {
			t.Errorf("the number is echoed: %s", a.body)
		}
	})
}

func TestOtherNumbersAreNoCards(t *testing.T) {
	testdb.Long(t, "it sends many bodies")
	t.Parallel()
	w := serve(t)
	for i, text := range []string{
		"4242424242424241",                     // fails the check
		"424242424242",                         // 12 digits
		"42424242424242424242",                 // 20 digits
		"ch_4242424242424242a",                 // digits of an identifier
		"a4242424242424242",                    //
		"é4242424242424242",                    //
		"42424242-4242-4242-8242-abcdefabcdef", // a UUID
		"2026-09-01 12:30:00",
	} {
		t.Run(text, func(t *testing.T) {
			w.accept(t, "key-"+strconv.Itoa(i), body("description", strconv.Quote(text)))
		})
	}
}
