package httpapi_test

import (
	"strconv"
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
		{"items empty", body(), body("items", "[]")},
		{"metadata null", body(), body("metadata", "null")},
		{"metadata empty", body(), body("metadata", "{}")},
		{"metadata with a pair of null", body(), body("metadata", `{"channel":null}`)},
		{"description null", body(), body("description", "null")},
		{"one form of absence for another", body("items", "null", "metadata", "{}"), body("items", "[]", "description", "null")},
		{"another Content-Type parameter", body(), body()},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
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
	for _, test := range []struct{ name, body string }{
		{"another amount", change("amount", "2001")},
		{"another order", change("order_id", `"order-2"`)},
		{"another currency", change("currency", `"EUR"`)},
		{"another payment method", change("payment_method", `"pm_card_chargeDeclined"`)},
		{"another description", change("description", `"a gift"`)},
		{"no description", change("description", "")},
		{"items in another order", change("items", `[{"sku":"mug","quantity":1},{"sku":"tshirt","quantity":2}]`)},
		{"another quantity", change("items", `[{"sku":"tshirt","quantity":2},{"sku":"mug","quantity":2}]`)},
		{"an item less", change("items", `[{"sku":"tshirt","quantity":2}]`)},
		{"no items", change("items", "")},
		{"another metadata value", change("metadata", `{"channel":"shop","a":"b"}`)},
		{"another metadata name", change("metadata", `{"Channel":"web","a":"b"}`)},
		{"names and values swapped", change("metadata", `{"web":"channel","a":"b"}`)},
		{"a metadata pair more", change("metadata", `{"channel":"web","a":"b","c":""}`)},
		{"no metadata", change("metadata", "")},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a := w.send(t, post("key-1", test.body))
			wantProblem(t, a, "/problems/idempotency-key-reused")
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
		t.Parallel()
		if a := w.accept(t, "key-1", change("amount", "2000")); a.body != first.body {
			t.Errorf("not the first answer: %s", a.body)
		}
	})
}
