package httpapi_test

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi/datamodel/high/base"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
)

// exchanged sends a call to a handler and returns both sides of it.
func exchanged(t *testing.T, api http.Handler, c call) (e exchange) {
	t.Helper()
	direct(t, recorded(api, func(seen exchange) { e = seen }), c)
	return e
}

// TestContract_acceptsTheSameBodies sends a body at and beyond each bound of the
// schemas of requests. It is refused if and only if the contract refuses it. So the
// checks of validate.go are written by hand, and the contract decides each bound.
func TestContract_acceptsTheSameBodies(t *testing.T) {
	t.Parallel()
	api, c := serve(t).handler, theContract(t)
	for path, schema := range map[string]string{
		"/v1/charges": "ChargeRequest", "/v1/charges/ch_1/refunds": "RefundRequest", "/v1/charges/ch_1/cancel": "Nothing",
	} {
		verdicts := map[bool]int{}
		for i, body := range values(schemaAt(t, schema)) {
			e := exchanged(t, api, to(path, "key-"+strconv.Itoa(i), body))
			refused := e.status == http.StatusBadRequest || e.status == http.StatusUnprocessableEntity
			want := c.checkRequest(e)
			if refused != (want != nil) {
				t.Errorf("%s with %.300s is answered %d %s, by the contract: %v", path, body, e.status, e.body, want)
			}
			verdicts[refused]++
		}
		if verdicts[true] < 5 || verdicts[false] == 0 {
			t.Errorf("%s: refused and accepted are %v", path, verdicts)
		}
	}
}

// values are JSON for a schema: one that fits it, then others at and beyond its bounds.
func values(s *base.Schema) []string {
	all := []string{fitting(s), "null", "true", "1", `"1"`, "[]", "{}", `["a"]`}
	switch {
	case slices.Contains(s.Type, "integer"):
		for _, bound := range []*float64{s.Minimum, s.Maximum} {
			for beside := int64(-1); bound != nil && beside <= 1; beside++ {
				all = append(all, strconv.FormatInt(int64(*bound)+beside, 10))
			}
		}
		all = append(all, strconv.FormatInt(math.MinInt64, 10), "9223372036854775808")
	case slices.Contains(s.Type, "string"):
		all = append(all, `""`, `"\u0000"`, `"4242424242424242"`, `"x 4242-4242 4242\u00a04242"`, `"4242424242424241"`,
			`"42424242-4242-4242-8242-abcdefabcdef"`, `"usd"`, `"XYZ"`,
			`"https://shop.example/back?order=17#paid"`, `"http://shop.example"`, `"https://user:secret@shop.example"`, `"https://"`, `"//shop.example"`,
			`"2999-11-26T16:40:00.5+01:00"`, `"2999-11-26"`)
		if s.MaxLength != nil {
			all = append(all, text(int(*s.MaxLength)), text(int(*s.MaxLength)+1))
		}
	case slices.Contains(s.Type, "array"):
		all = append(all, items(int(*s.MaxItems)), items(int(*s.MaxItems)+1))
		for _, item := range values(s.Items.A.Schema()) {
			all = append(all, "["+item+"]")
		}
	case s.PropertyNames != nil:
		all = append(all, pairs(int(*s.MaxProperties)), pairs(int(*s.MaxProperties)+1))
		for _, value := range values(s.AdditionalProperties.A.Schema()) {
			all = append(all, `{"a":`+value+`}`)
		}
		for _, name := range values(s.PropertyNames.Schema()) {
			if strings.HasPrefix(name, `"`) {
				all = append(all, `{`+name+`:"a"}`)
			}
		}
	default:
		for name, property := range s.Properties.FromOldest() {
			for _, value := range append(values(property.Schema()), "") {
				all = append(all, objectOf(s, name, value))
			}
			all = append(all, objectOf(s, strings.ToUpper(name), fitting(property.Schema())))
		}
		all = append(all, objectOf(s, "tip", "1"))
	}
	return all
}

// fitting is a value that fits a schema.
func fitting(s *base.Schema) string {
	switch {
	case s.Format == "iso-4217":
		return `"USD"`
	case slices.Contains(s.Type, "integer"):
		return strconv.FormatInt(int64(*s.Minimum), 10)
	case slices.Contains(s.Type, "string"):
		return `"a"`
	case slices.Contains(s.Type, "array"):
		return "[]"
	}
	return objectOf(s, "", "")
}

// objectOf has the required members of a schema, and one that is given or, if it is
// empty, left out.
func objectOf(s *base.Schema, name, value string) string {
	var members []string
	for _, required := range s.Required {
		if required != name {
			members = append(members, fmt.Sprintf("%q:%s", required, fitting(s.Properties.GetOrZero(required).Schema())))
		}
	}
	if value != "" {
		members = append(members, fmt.Sprintf("%q:%s", name, value))
	}
	return "{" + strings.Join(members, ",") + "}"
}

// TestContract_acceptsTheSameParameters does the same with parameters of paths,
// queries and headers. What is found by an id that fits is another question. A refusal names the
// parameter of the query.
func TestContract_acceptsTheSameParameters(t *testing.T) {
	t.Parallel()
	w := serve(t)
	api, c := w.handler, theContract(t)
	charge := idOf(w.accept(t, "a-charge", body()).header.Get("Location"))
	bodies := map[string]string{"/v1/charges": body(), "/v1/charges/{id}/refunds": `{"amount":1}`}
	verdicts := map[string]map[bool]int{}
	operations(c, func(method, path string, _ *v3.Operation, parameters []*v3.Parameter) {
		if path == "/v1/webhooks/stripe" { // takes a signature alone
			return
		}
		for _, p := range parameters {
			name := p.In + " " + p.Name
			if verdicts[name] == nil {
				verdicts[name] = map[bool]int{}
			}
			for i, value := range parameterValues(p.Schema.Schema()) {
				key, where := fmt.Sprint(path, p.Name, i), path
				call := to("", key, bodies[path]).like(method)
				switch p.In {
				case "path":
					where = strings.Replace(path, "{"+p.Name+"}", url.PathEscape(value), 1)
				case "query":
					where += "?" + p.Name + "=" + url.QueryEscape(value)
				case "header":
					call = call.with(p.Name, value)
				}
				call.path = strings.NewReplacer("{id}", charge, "{refund}", "re_1", "{key}", "a-charge").Replace(where)
				e := exchanged(t, api, call)
				want := c.checkRequest(e)
				refused := e.status == http.StatusBadRequest || e.status == http.StatusUnprocessableEntity
				found := p.In == "path" || p.Name == "starting_after" || p.Name == "after"
				if want != nil && !refused && e.status != http.StatusNotFound || want == nil && refused && !found {
					t.Errorf("%s %s with %q is answered %d %s, by the contract: %v", method, call.path, value, e.status, e.body, want)
				}
				if refused && p.In == "query" {
					wantPointers(t, readProblem(t, e.answer), "/"+p.Name)
				}
				verdicts[name][want != nil]++
			}
		}
	})
	for name, of := range verdicts {
		anything := name == "header Prefer" || name == "header X-Request-Id"
		if of[false] == 0 || of[true] == 0 && !anything {
			t.Errorf("of %s the contract refuses and takes %v", name, of)
		}
	}
}

// parameterValues are texts for a parameter: some that fit, and some that nearly do.
func parameterValues(s *base.Schema) []string {
	all := []string{"a", "1", "0", "-1", "x y", "\x00", "4242424242424242", "4242424242424241", `"a"`, `"`, `"a\"b\\"`, "é"}
	for _, value := range s.Enum {
		all = append(all, value.Value, strings.ToUpper(value.Value))
	}
	for _, bound := range []*float64{s.Minimum, s.Maximum} {
		for beside := int64(-1); bound != nil && beside <= 1; beside++ {
			all = append(all, strconv.FormatInt(int64(*bound)+beside, 10))
		}
	}
	return append(all, strings.Repeat("k", 255), strings.Repeat("k", 256))
}
