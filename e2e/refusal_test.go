package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// refusal is a request that is turned away.
type refusal struct {
	name   string
	send   request
	status int
	kind   string
	header string // that the answer must carry
}

// TestAPI_refusedRequest_leavesNoRow sends every kind of request that must be
// refused, and counts the rows of all tables before and after.
func TestAPI_refusedRequest_leavesNoRow(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1})
	rows := d.count(t)
	t.Cleanup(func() {
		if diff := cmp.Diff(rows, d.count(t)); diff != "" {
			t.Errorf("rows before (-) and after (+) all refusals:\n%s", diff)
		}
	})
	var cases []refusal
	for _, more := range [][]refusal{malformed(), notValid(t), badKeys(t), unauthenticated(t), misdirected(t)} {
		cases = append(cases, more...)
	}
	t.Logf("%d requests are refused", len(cases))
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := d.client.do(t.Context(), c.send)
			if err != nil {
				t.Fatal(err)
			}
			p := mustBeProblem(t, got, c.status, c.kind)
			if p.Retryable {
				t.Errorf("it may be sent again as it is: %s", got.Body)
			}
			if c.header != "" && got.Header.Get(c.header) == "" {
				t.Errorf("the answer lacks %s: %v", c.header, got.Header)
			}
			if c.send.key != "" && bytes.Contains(got.Body, []byte(c.send.key)) {
				t.Errorf("the answer repeats the key: %s", got.Body)
			}
		})
	}
}

// count is the number of rows of every table.
func (d *deployment) count(t *testing.T) map[string]int64 {
	t.Helper()
	const tables = `
select format('%I.%I', schemaname, relname)
  from pg_stat_user_tables`
	counts := map[string]int64{}
	for _, table := range rows[string](t, d, tables) {
		counts[table] = row[int64](t, d, "select count(*) from "+table)
	}
	if len(counts) < 5 {
		t.Errorf("there are but %d tables", len(counts))
	}
	return counts
}

// member is the body of a charge with one member written out, or added.
func member(name, text string) []byte {
	members := []string{`"order_id":"A-1"`, `"amount":1000`, `"currency":"USD"`, `"payment_method":"pm_card_visa"`}
	kept := members[:0]
	for _, m := range members {
		if !strings.HasPrefix(m, `"`+name+`"`) {
			kept = append(kept, m)
		}
	}
	if text != "" {
		kept = append(kept, `"`+name+`":`+text)
	}
	return []byte("{" + strings.Join(kept, ",") + "}")
}

func malformed() []refusal {
	good := string(member("", ""))
	var cases []refusal
	for name, body := range map[string][]byte{
		"no body":                         {},
		"half a body":                     []byte(good[:len(good)/2]),
		"a list":                          []byte("[" + good + "]"),
		"a string":                        []byte(`"charge"`),
		"trailing data":                   []byte(good + "{}"),
		"a trailing bracket":              []byte(good + "]"),
		"a name twice":                    []byte(strings.Replace(good, "{", `{"amount":1,`, 1)),
		"a name twice, once by an escape": []byte(strings.Replace(good, "{", `{"\u0061mount":1,`, 1)),
		"a name in capitals":              member("AMOUNT", "1"),
		"a name in capitals alone":        []byte(strings.Replace(good, "amount", "Amount", 1)),
		"an unknown name":                 member("tip", "1"),
		"an unknown name in an item":      member("items", `[{"sku":"tshirt","quantity":1,"price":1}]`),
		"an amount with a fraction":       member("amount", "1.0"),
		"an amount with an exponent":      member("amount", "1e3"),
		"an amount beyond 64 bits":        member("amount", "9223372036854775808"),
		"an amount far below 64 bits":     member("amount", "-99999999999999999999"),
		"an amount in quotes":             member("amount", `"1000"`),
		"an amount with a leading zero":   member("amount", "01000"),
		"a quantity with a fraction":      member("items", `[{"sku":"tshirt","quantity":1.5}]`),
		"an order id that is a number":    member("order_id", "1"),
		"a NUL":                           member("order_id", `"A\u0000"`),
		"a NUL in a name of metadata":     member("metadata", `{"a\u0000":"b"}`),
		"no UTF-8":                        member("order_id", "\"\xff\""),
		"half a surrogate pair":           member("order_id", `"\ud800"`),
		"items that are no list":          member("items", `{}`),
		"metadata that is no text":        member("metadata", `{"a":1}`),
	} {
		cases = append(cases, refusal{"malformed: " + name, request{key: "key-" + unique(), body: body}, http.StatusBadRequest, "malformed", ""})
	}
	for name, values := range map[string][]string{"no content type": nil, "text/plain": {"text/plain"}, "a form": {"application/x-www-form-urlencoded"}} {
		cases = append(cases, refusal{
			"media type: " + name,
			request{key: "key-" + unique(), body: []byte(good), header: http.Header{"Content-Type": values}},
			http.StatusUnsupportedMediaType, "unsupported-media-type", "",
		})
	}
	large := member("description", `"`+strings.Repeat("x", 65<<10)+`"`)
	return append(cases, refusal{"a body of 65 KiB", request{key: "key-" + unique(), body: large}, http.StatusRequestEntityTooLarge, "too-large", ""})
}

func notValid(t *testing.T) []refusal {
	t.Helper()
	long := `"` + strings.Repeat("é", 256) + `"`
	items := strings.Repeat(`{"sku":"s","quantity":1},`, 101)
	pairs := map[string]string{}
	for i := range 21 {
		pairs[fmt.Sprint("name ", i)] = "value"
	}
	metadata, err := json.Marshal(pairs)
	if err != nil {
		t.Fatal(err)
	}
	var cases []refusal
	for name, body := range map[string][]byte{
		"no amount":                member("amount", ""),
		"an amount of 0":           member("amount", "0"),
		"an amount of -1":          member("amount", "-1"),
		"an amount of 10¹² + 1":    member("amount", "1000000000001"),
		"the largest amount":       member("amount", "9223372036854775807"),
		"no currency":              member("currency", ""),
		"a currency in lower case": member("currency", `"usd"`),
		"a currency of nobody":     member("currency", `"ZZZ"`),
		"no order id":              member("order_id", ""),
		"an empty order id":        member("order_id", `""`),
		"a long order id":          member("order_id", long),
		"no payment method":        member("payment_method", ""),
		"a long description":       member("description", long),
		"an item of none":          member("items", `[{"sku":"tshirt","quantity":0}]`),
		"an item of too many":      member("items", `[{"sku":"tshirt","quantity":1000001}]`),
		"an item without a name":   member("items", `[{"quantity":1}]`),
		"an item twice":            member("items", `[{"sku":"tshirt","quantity":1},{"sku":"tshirt","quantity":2}]`),
		"101 items":                member("items", "["+strings.TrimSuffix(items, ",")+"]"),
		"21 pairs of metadata":     member("metadata", string(metadata)),
		"a long value of metadata": member("metadata", `{"a":"`+strings.Repeat("x", 501)+`"}`),
	} {
		cases = append(cases, refusal{"not valid: " + name, request{key: "key-" + unique(), body: body}, http.StatusUnprocessableEntity, "validation", ""})
	}
	return cases
}

func badKeys(t *testing.T) []refusal {
	t.Helper()
	body := newOrder(visa).body(t)
	cases := []refusal{
		{"a missing key", request{body: body}, http.StatusBadRequest, "idempotency-key-missing", "Link"},
	}
	for name, values := range map[string][]string{
		"an empty key":                   {""},
		"a key of 256 characters":        {strings.Repeat("k", 256)},
		"a key with a space":             {"a key"},
		"a key that is not ASCII":        {"clé"},
		"a key with half a quote":        {`"key`},
		"a key of quotes around nothing": {`""`},
		"a key with a quote inside":      {`ke"y`},
		"a key with parameters":          {`"key";a=1`},
		"two keys":                       {"one", "two"},
	} {
		cases = append(cases, refusal{name, request{body: body, header: http.Header{"Idempotency-Key": values}}, http.StatusBadRequest, "idempotency-key-invalid", ""})
	}
	return cases
}

func unauthenticated(t *testing.T) []refusal {
	t.Helper()
	var cases []refusal
	for name, values := range map[string][]string{
		"no API key":             nil,
		"an unknown API key":     {"Bearer sk_test_" + unique()},
		"an API key that is not": {"Bearer"},
		"another scheme":         {"Basic c2tfdGVzdF94Og=="},
	} {
		header := http.Header{"Authorization": values}
		cases = append(cases,
			refusal{name + " in a charge", request{key: "key-" + unique(), body: newOrder(visa).body(t), header: header}, http.StatusUnauthorized, "unauthorized", "Www-Authenticate"},
			refusal{name + " in a read", request{method: http.MethodGet, path: "/v1/balances", header: header}, http.StatusUnauthorized, "unauthorized", "Www-Authenticate"})
	}
	return cases
}

func misdirected(t *testing.T) []refusal {
	t.Helper()
	charge := newOrder(visa).body(t)
	return []refusal{
		{"a charge that is not there", request{method: http.MethodGet, path: "/v1/charges/ch_" + unique()}, http.StatusNotFound, "not-found", ""},
		{"its events", request{method: http.MethodGet, path: "/v1/charges/ch_" + unique() + "/events"}, http.StatusNotFound, "not-found", ""},
		{"a charge with a name of bytes", request{method: http.MethodGet, path: "/v1/charges/%00%ff"}, http.StatusNotFound, "not-found", ""},
		{"a path that is not there", request{method: http.MethodGet, path: "/v1/payments"}, http.StatusNotFound, "not-found", ""},
		{"a path outside", request{method: http.MethodGet, path: "/charges"}, http.StatusNotFound, "not-found", ""},
		{"a method that is not known", request{method: http.MethodPut, key: "key-" + unique(), body: charge}, http.StatusMethodNotAllowed, "method-not-allowed", "Allow"},
		{"a deletion", request{method: http.MethodDelete, path: "/v1/charges/ch_" + unique()}, http.StatusMethodNotAllowed, "method-not-allowed", "Allow"},
	}
}
