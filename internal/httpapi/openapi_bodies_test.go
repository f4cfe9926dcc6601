package httpapi_test

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/payonce/payonce/internal/openapi"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// TestBodiesAreJudgedAsByTheContract sends bodies that are made from the schemas
// of requests, and from around them. Each is refused here if and only if the
// contract refuses it, with the same status and the same pointers.
//
// So the checks in validate.go are written by hand, and yet the contract is the
// one place where a bound is decided: change it there, and this test fails.
func TestBodiesAreJudgedAsByTheContract(t *testing.T) {
	pgtest.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := serve(t)
	c := theContract(t)
	api := w.handler()
	seen, sending := map[int]int{}, 0
	rapid.Check(t, func(r *rapid.T) {
		asked := rapid.SampledFrom([]struct{ path, schema string }{
			{"/v1/charges", "ChargeRequest"},
			{"/v1/charges", "ChargeRequest"},
			{"/v1/charges/ch_1/refunds", "RefundRequest"},
			{"/v1/charges/ch_1/cancel", "Nothing"},
		}).Draw(r, "operation")
		var judged error
		handler := openapi.Handler(api, func(e openapi.Exchange) {
			if judged = agrees(c, e); judged == nil {
				judged = c.Check(e)
			}
			seen[e.Status]++
		})
		for range 8 { // so that each kind of answer comes up, also in short mode
			request := bodies{r, c}.of("/components/schemas/" + asked.schema)
			sending++
			asks := httptest.NewRequestWithContext(t.Context(), http.MethodPost, asked.path, strings.NewReader(request))
			asks.Header = to(asked.path, "key-"+strconv.Itoa(sending), "").header
			handler.ServeHTTP(httptest.NewRecorder(), asks)
			if judged != nil {
				r.Fatal(judged)
			}
		}
	})
	t.Logf("answers: %v", seen)
	for _, status := range []int{http.StatusAccepted, http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusNotFound} {
		if seen[status] == 0 {
			t.Errorf("no body was answered %d, of %v", status, seen)
		}
	}
}

// bodies makes JSON from schemas: mostly what fits, and what nearly does.
type bodies struct {
	*rapid.T
	contract *openapi.Contract
}

func (b bodies) one(of ...string) string { return rapid.SampledFrom(of).Draw(b.T, "choice") }

// seldom is that: rapid draws small numbers and bounds more often than others.
func (b bodies) seldom() bool { return rapid.IntRange(0, 60).Draw(b.T, "seldom") == 23 }

// of is a value for the schema at a pointer.
func (b bodies) of(at string) string {
	if b.seldom() {
		return b.one("null", "true", "0", `""`, "[]", "{}", `"1"`, "1.0", `["a"]`, `{"a":1}`)
	}
	schema := b.contract.Node(at)
	switch types := jsonTypes(schema); {
	case slices.Contains(types, "integer"):
		return b.integer(number(schema, "minimum"), number(schema, "maximum"))
	case slices.Contains(types, "string"):
		return b.text(number(schema, "minLength"), number(schema, "maxLength"))
	case slices.Contains(types, "array"):
		return b.array(at, number(schema, "maxItems"))
	default:
		return b.object(at, schema)
	}
}

func (b bodies) integer(least, most int64) string {
	if b.seldom() {
		return b.one("-0", "1.0", "1e0", "0.1", "01", "+1", strconv.FormatInt(math.MinInt64, 10), "9223372036854775808", "-9223372036854775809")
	}
	edge := rapid.SampledFrom([]int64{least, least - 1, most, most + 1, math.MaxInt64}).Draw(b.T, "edge")
	if b.seldom() {
		return strconv.FormatInt(edge, 10)
	}
	return strconv.FormatInt(rapid.Int64Range(least, most).Draw(b.T, "number"), 10)
}

func (b bodies) text(least, most int64) string {
	if b.seldom() {
		return b.one(`"\u0000"`, `"a\u0000b"`, `"\ud800"`, "\"\xff\"", `"4242424242424242"`, `"x 4242-4242 4242\u00a04242"`, `"4242424242424241"`,
			`"é4242424242424242"`, `"42424242-4242-4242-8242-abcdefabcdef"`, `"usd"`, `"XYZ"`, `"\ud83d\ude00"`)
	}
	if b.seldom() {
		n := rapid.SampledFrom([]int64{least - 1, least, most, most + 1}).Draw(b.T, "length")
		return text(int(max(n, 0)))
	}
	if most == 0 { // a currency
		return b.one(`"USD"`, `"JPY"`, `"KWD"`, `"EUR"`)
	}
	return strconv.Quote(rapid.StringMatching(`[a-z]{1,3}`).Draw(b.T, "text"))
}

func (b bodies) array(at string, most int64) string {
	n := int64(rapid.IntRange(0, 3).Draw(b.T, "length"))
	if b.seldom() {
		n = most + int64(rapid.IntRange(0, 1).Draw(b.T, "beyond"))
		return items(int(n))
	}
	parts := make([]string, n)
	for i := range parts {
		parts[i] = b.of(at + "/items")
	}
	return "[" + strings.Join(parts, ",") + "]"
}

func (b bodies) object(at string, schema map[string]any) string {
	var parts []string
	properties, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		required := slices.Contains(asList(schema["required"]), any(name))
		if required && b.seldom() || !required && rapid.Bool().Draw(b.T, "leave "+name+" out") {
			continue
		}
		value := b.of(at + "/properties/" + name)
		if b.seldom() {
			name = b.one(strings.ToUpper(name), " "+name, `\u00`+hex.EncodeToString([]byte(name[:1]))+name[1:])
		}
		parts = append(parts, `"`+name+`":`+value)
	}
	if schema["propertyNames"] != nil {
		n := rapid.IntRange(0, 2).Draw(b.T, "pairs")
		if b.seldom() {
			return pairs(rapid.IntRange(20, 21).Draw(b.T, "many"))
		}
		for range n {
			name := b.text(0, number(b.contract.Node(at+"/propertyNames"), "maxLength"))
			parts = append(parts, name+":"+b.of(at+"/additionalProperties"))
		}
	}
	if b.seldom() {
		parts = append(parts, b.one(`"tip":1`, `"order_id":"again"`, `"":null`, `"amount":1`))
	}
	return b.one("{", "{", "{", " {\n") + strings.Join(parts, ",") + "}"
}

func number(schema map[string]any, keyword string) int64 {
	n, err := strconv.ParseInt(fmt.Sprint(schema[keyword]), 10, 64)
	if err != nil {
		return 0 // there is none
	}
	return n
}
