package httpapi_test

import (
	"strconv"
	"strings"
	"testing"
)

const original = `{"order_id":"order-1","amount":2000,"currency":"USD","payment_method":"pm_card_visa",` +
	`"items":[{"sku":"tshirt","quantity":2},{"sku":"mug","quantity":1}],"description":"A gift",` +
	`"metadata":{"channel":"web","a":"b"}}`

func TestSameRequestIsReplayed(t *testing.T) {
	t.Parallel()
	w := serve(t)
	for i, test := range []struct{ name, first, again string }{
		{"the same bytes", original, original},
		{
			"another order of members", original,
			`{"metadata":{"a":"b","channel":"web"},"description":"A gift",` +
				`"items":[{"quantity":2,"sku":"tshirt"},{"sku":"mug","quantity":1}],` +
				`"payment_method":"pm_card_visa","currency":"USD","amount":2000,"order_id":"order-1"}`,
		},
		{
			"white space", body(),
			"\r\n\t" + ` { "order_id" : "order-1",` + "\n" + `"amount" : 2000 , "currency":"USD","payment_method":"pm_card_visa" } ` + "\n",
		},
		{"escaped letters", body("description", `"A gift/1"`), body("description", `"\u0041 gift\/1"`)},
		{"escaped names", body(), `{"order_id":"order-1","\u0061mount":2000,"currency":"USD","payment_method":"pm_card_visa"}`},
		{"a surrogate pair", body("description", `"😀"`), body("description", `"\ud83d\ude00"`)},
		{"items null", body(), body("items", "null")},
		{"metadata null", body(), body("metadata", "null")},
		{"metadata with a pair of null", body(), body("metadata", `{"channel":null}`)},
		{"description null", body(), body("description", "null")},
		{"one form of absence for another", body("items", "null", "metadata", "{}"), body("items", "[]", "description", "null")},
	} {
		t.Run(test.name, func(t *testing.T) {
			key := "key-" + strconv.Itoa(i)
			first := w.accept(t, key, test.first)
			again := w.send(t, post(key, test.again).with("Content-Type", "Application/JSON; charset=UTF-8"))
			if again.status != first.status || again.header.Get("Idempotent-Replayed") != "true" || again.body != first.body {
				t.Errorf("status %d, not the first answer:\n%s%s", again.status, first.body, again.body)
			}
		})
	}
}

func TestOtherRequestIsRefused(t *testing.T) {
	t.Parallel()
	w := serve(t)
	first := w.accept(t, "key-1", original)
	before := rows(t, w.db)
	change := func(name, value string) string {
		return body("items", `[{"sku":"tshirt","quantity":2},{"sku":"mug","quantity":1}]`,
			"description", `"A gift"`, "metadata", `{"channel":"web","a":"b"}`, name, value)
	}
	for _, test := range []struct{ name, body, pointers string }{
		{"another amount", change("amount", "2001"), "/amount"},
		{"another order", change("order_id", `"order-2"`), "/order_id"},
		{"another currency", change("currency", `"EUR"`), "/currency"},
		{"another payment method", change("payment_method", `"pm_card_chargeDeclined"`), "/payment_method"},
		{"another description", change("description", `"a gift"`), "/description"},
		{"no description", change("description", ""), "/description"},
		{"items in another order", change("items", `[{"sku":"mug","quantity":1},{"sku":"tshirt","quantity":2}]`), "/items/0/quantity /items/0/sku /items/1/quantity /items/1/sku"},
		{"no items", change("items", ""), "/items"},
		{"another metadata name", change("metadata", `{"Channel":"web","a":"b"}`), "/metadata/Channel /metadata/channel"},
		{"a metadata pair more", change("metadata", `{"channel":"web","a":"b","c":""}`), "/metadata/c"},
		{"an item more", change("items", `[{"sku":"tshirt","quantity":2},{"sku":"mug","quantity":1},{"sku":"pen","quantity":1}]`), "/items/2"},
		{"two members", strings.NewReplacer("2000", "2001", "USD", "EUR").Replace(original), "/amount /currency"},
		{"a metadata name with a slash", change("metadata", `{"channel":"web","a":"b","x/y~z":"w"}`), "/metadata/x~1y~0z"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := w.send(t, post("key-1", test.body))
			wantPointers(t, wantProblem(t, a, "/problems/idempotency-key-reused"), strings.Fields(test.pointers)...)
			for _, value := range []string{"2000", "2001", "gift"} {
				if strings.Contains(a.body, value) {
					t.Errorf("the answer repeats the value %s: %s", value, a.body)
				}
			}
			if a.header.Get("Location") != "" {
				t.Error("a refusal has a Location")
			}
			for _, name := range []string{"Idempotency-Key", "Idempotency-Expires"} {
				if a.header.Get(name) != first.header.Get(name) {
					t.Errorf("%s is %q, want %q", name, a.header.Get(name), first.header.Get(name))
				}
			}
			wantRows(t, w.db, before, nil)
		})
	}
	t.Run("the original", func(t *testing.T) {
		if a := w.accept(t, "key-1", change("amount", "2000")); a.body != first.body {
			t.Errorf("not the first answer: %s", a.body)
		}
	})
}
