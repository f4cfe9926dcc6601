package httpapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/payonce/payonce/internal/openapi"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// TestParametersAreJudgedAsByTheContract sends every operation parameters that
// are made from their schemas, and from around them. They are refused if and only
// if the contract refuses them.
func TestParametersAreJudgedAsByTheContract(t *testing.T) {
	pgtest.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := serveOn(t, pgtest.Reused(t), nil)
	handler, c := w.handler(), theContract(t)
	var asked []openapi.Operation
	for _, o := range c.Operations() {
		if len(c.Parameters(o)) > 0 && o.Path != stripePath { // of which no clock is set here
			asked = append(asked, o)
		}
	}
	charge := idOf(w.accept(t, "a-charge", body()).header.Get("Location"))
	parked := w.setAside(t, charge, "dead")[0]
	known := map[string][]string{"id": {charge, strconv.FormatInt(parked, 10)}, "starting_after": {charge, "1"}, "key": {"a-charge"}}
	seen := map[string]map[bool]int{} // by parameter, those that fit and those that do not
	send := func(request *http.Request, fail func(...any)) {
		openapi.Handler(handler, func(e openapi.Exchange) {
			for _, obeys := range []rule{(*openapi.Contract).Check, fits, agrees} {
				if err := obeys(c, e); err != nil {
					fail(err)
				}
			}
			count(t, c, seen, e.Request)
		}).ServeHTTP(httptest.NewRecorder(), request)
	}
	for _, o := range asked {
		send(plain(t, c, o, known, openapi.Parameter{}), t.Error)
		for _, p := range c.Parameters(o) {
			send(plain(t, c, o, known, p), t.Error)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		for range 8 {
			p := parameters{bodies{r, c}, known}
			send(p.request(t, rapid.SampledFrom(asked).Draw(r, "operation")), r.Fatal)
		}
	})
	for _, o := range asked {
		for _, p := range c.Parameters(o) {
			of := seen[p.In+" "+p.Name]
			anything := slices.Contains([]string{"Prefer", "X-Request-Id", "If-None-Match"}, p.Name)
			if of[true] == 0 || of[false] == 0 && !anything {
				t.Errorf("of %s %s there were %v", p.In, p.Name, of)
			}
		}
	}
}

const stripePath = "/v1/webhooks/stripe"

// count says of each parameter of a request whether it fits.
func count(t *testing.T, c *openapi.Contract, seen map[string]map[bool]int, request *http.Request) {
	t.Helper()
	misfits, _, err := c.Misfits(request)
	if err != nil {
		t.Fatal(err)
	}
	operation := c.Operations()[slices.IndexFunc(c.Operations(), func(o openapi.Operation) bool {
		return o.Method+o.Path == request.Pattern
	})]
	for _, p := range c.Parameters(operation) {
		name := p.In + " " + p.Name
		if seen[name] == nil {
			seen[name] = map[bool]int{}
		}
		fits := !slices.ContainsFunc(misfits, func(m openapi.Misfit) bool { return m.In == p.In && m.Name == p.Name })
		seen[name][fits]++
	}
}

// parameters makes them from schemas: mostly what fits, and what nearly does.
type parameters struct {
	bodies

	known map[string][]string // values that something is found by
}

func (p parameters) request(t *testing.T, o openapi.Operation) *http.Request {
	t.Helper()
	path, query, header := o.Path, []string{}, http.Header{}
	for _, of := range p.contract.Parameters(o) {
		switch of.In {
		case "path":
			path = strings.Replace(path, "{"+of.Name+"}", url.PathEscape(p.nonempty(of)), 1)
		case "query":
			query = append(query, p.ofQuery(of)...)
		case "header":
			if values := p.ofHeader(of); len(values) > 0 {
				header[http.CanonicalHeaderKey(of.Name)] = values
			}
		}
	}
	if len(query) > 0 && p.seldom() {
		query = append(query, p.one("page=2", "stauts=failed", "4242424242424242=1", "%ff=1", "a=%zz", "a;b", "Limit=1", "limit%00=1"))
	}
	return carrying(t, o, path, strings.Join(query, "&"), header)
}

// plain is a request whose parameters all fit, but for the one that is wrong: it
// is NUL.
func plain(t *testing.T, c *openapi.Contract, o openapi.Operation, known map[string][]string, wrong openapi.Parameter) *http.Request {
	t.Helper()
	path, query, header := o.Path, url.Values{}, http.Header{}
	for _, p := range c.Parameters(o) {
		value := "1"
		switch enum := asList(c.Node(p.Schema)["enum"]); {
		case p.In == wrong.In && p.Name == wrong.Name:
			value = "\x00"
		case len(known[p.Name]) > 0:
			value = known[p.Name][0]
		case len(enum) > 0:
			value = fmt.Sprint(enum[0])
		}
		switch p.In {
		case "path":
			path = strings.Replace(path, "{"+p.Name+"}", url.PathEscape(value), 1)
		case "query":
			query.Set(p.Name, value)
		case "header":
			header.Set(p.Name, value)
		}
	}
	return carrying(t, o, path, query.Encode(), header)
}

// carrying is a request with a body that is fine. Its pattern names the operation.
func carrying(t *testing.T, o openapi.Operation, path, query string, header http.Header) *http.Request {
	t.Helper()
	sent := ""
	if o.Method == http.MethodPost {
		sent = map[string]string{"/v1/charges": body(), "/v1/charges/{id}/refunds": `{"amount":1}`}[o.Path]
	}
	header.Set("Authorization", "Bearer "+apiKey)
	header.Set("Content-Type", "application/json")
	r := httptest.NewRequestWithContext(t.Context(), o.Method, path, strings.NewReader(sent))
	r.URL.RawQuery, r.Header, r.Pattern = query, header, o.Method+o.Path
	return r
}

// nonempty is a part of a path.
func (p parameters) nonempty(of openapi.Parameter) string {
	if v := p.value(of); v != "" {
		return v
	}
	return "-"
}

func (p parameters) ofQuery(of openapi.Parameter) (pairs []string) {
	pair := func() string { return of.Name + "=" + url.QueryEscape(p.value(of)) }
	switch {
	case p.seldom():
		return []string{pair(), pair()}
	case p.seldom():
		return []string{p.one(of.Name, of.Name+"=")}
	case rapid.Bool().Draw(p.T, "leave "+of.Name+" out"):
		return nil
	}
	return []string{pair()}
}

func (p parameters) ofHeader(of openapi.Parameter) []string {
	switch {
	case p.seldom():
		return nil
	case p.seldom():
		return []string{p.value(of), p.value(of)}
	}
	return []string{p.value(of)}
}

// value is one for a parameter, as text.
func (p parameters) value(of openapi.Parameter) string {
	if values := p.known[of.Name]; len(values) > 0 && rapid.Bool().Draw(p.T, "known") {
		return rapid.SampledFrom(values).Draw(p.T, "which")
	}
	schema := p.contract.Node(of.Schema)
	switch rapid.IntRange(0, 9).Draw(p.T, "odd") {
	case 3, 4:
		return p.one("\x00", "a\x00", "\xff", "4242424242424242", "é4242-4242 4242\u00a04242.", `"4242424242424242"`, strings.Repeat("k", 256))
	case 5:
		return p.one("", " ", "0", "-0", "+5", "05", "5.0", "1e2", "0x5", "5 ", "٥", "-1", "99999999999999999999", "null", "a,b", "Pending", "dead ")
	case 7:
		return p.one("é", `"`, `"a`, `a"`, `\`, `"a\"`, `""`, `"a b"`, `"a";q=1`, `"\a"`,
			strings.Repeat("k", 255), `"`+strings.Repeat(`\\`, 255)+`"`, `"`+strings.Repeat(`\"`, 256)+`"`)
	}
	if enum := asList(schema["enum"]); len(enum) > 0 {
		return fmt.Sprint(rapid.SampledFrom(enum).Draw(p.T, "value"))
	}
	if slices.Contains(jsonTypes(schema), "integer") {
		return p.integer(number(schema, "minimum"), max(number(schema, "maximum"), 1))
	}
	return p.one("a", "order-17", `"order-17"`, `"a\"b\\"`, "wait=1", "~!#$%&'()*+,-./:;<=>?@[]^_`{|}")
}
