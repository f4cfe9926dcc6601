package openapi_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/payonce/payonce/internal/openapi"
)

const document = `
openapi: 3.1.0
info: {title: jars, version: "1"}
paths:
  /jars/{id}:
    get:
      security: []
      responses:
        "200":
          description: A jar.
          headers:
            X-Kept: {required: true, schema: {type: string, pattern: "^[a-z]+$"}}
          content:
            application/json:
              schema: {$ref: "#/components/schemas/Jar"}
              examples:
                one: {value: {"of": "jam"}}
        "4XX": {$ref: "#/components/responses/No"}
    post:
      security: [{key: [jars:write, jars:read]}]
      requestBody:
        content:
          application/json:
            schema: {$ref: "#/components/schemas/Jar"}
      responses:
        "204": {description: Kept.}
  /jars/all:
    get:
      security: []
      responses:
        "200":
          description: All.
          content:
            text/plain: {schema: {type: string}}
webhooks:
  sold:
    post:
      parameters:
        - {name: webhook-id, in: header, required: true, schema: {type: string, format: uuid}}
        - {name: shelf, in: header, schema: {type: string, maxLength: 2}}
      requestBody:
        content:
          application/json:
            schema: {$ref: "#/components/schemas/Jar"}
x-elsewhere:
  responses:
    "404": {$ref: "#/components/responses/No"}
components:
  responses:
    No:
      description: None.
      content:
        application/problem+json:
          schema: {type: object, properties: {why: {type: string}}}
  schemas:
    Jar:
      type: object
      required: [of]
      properties:
        of: {type: string, format: fruit, maxLength: 5}
        notes:
          type: object
          propertyNames: {maxLength: 3}
          additionalProperties: {type: [string, "null"]}
`

func read(t *testing.T, document string) *openapi.Contract {
	t.Helper()
	c, err := openapi.Read([]byte(document), openapi.Formats{"fruit": func(v any) error {
		if v == "stone" {
			return errStone
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var errStone = errors.New("is no fruit")

func ask(t *testing.T, method, path string) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	c := read(t, document)
	kept := http.Header{"Content-Type": {"application/json; charset=utf-8"}, "X-Kept": {"a"}, "Date": {"now"}}
	text, trouble := http.Header{"Content-Type": {"text/plain"}}, http.Header{"Content-Type": {"application/problem+json"}}
	for _, test := range []struct {
		name, method, path string
		status             int
		header             http.Header
		body               string
		wrong              string
	}{
		{"what is listed", "GET", "/jars/1", 200, kept, `{"of":"jam","notes":{"a":null}}`, ""},
		{"HEAD, without the body", "HEAD", "/jars/1", 200, kept, "", ""},
		{"a class of statuses", "GET", "/jars/1", 418, trouble, `{"why":"it is tea"}`, ""},
		{"the path without parameters before the one with", "GET", "/jars/all", 200, text, "jam", ""},
		{"another path", "GET", "/pots", 404, trouble, `{}`, ""},
		{"another method", "PUT", "/jars/1", 404, trouble, `{}`, ""},
		{"an empty parameter", "GET", "/jars/", 404, trouble, `{}`, ""},
		{"an encoded slash", "GET", "/jars/a%2Fb", 200, kept, `{"of":"jam"}`, ""},
		{"no body where none is listed", "POST", "/jars/1", 204, http.Header{}, "", ""},

		{"a status that is not listed", "GET", "/jars/1", 201, kept, `{"of":"jam"}`, "the status is not listed"},
		{"a status that is not listed elsewhere", "GET", "/pots", 200, kept, `{}`, "the status is not listed"},
		{"a header that is not listed", "GET", "/jars/all", 200, http.Header{"Content-Type": {"text/plain"}, "X-Other": {"1"}}, "", "X-Other is not listed"},
		{"a header that is missing", "GET", "/jars/1", 200, http.Header{"Content-Type": {"application/json"}}, `{"of":"jam"}`, "X-Kept is missing"},
		{"a header that is wrong", "GET", "/jars/1", 200, http.Header{"Content-Type": {"application/json"}, "X-Kept": {"1"}}, `{"of":"jam"}`, "X-Kept is"},
		{"another media type", "GET", "/jars/1", 200, http.Header{"Content-Type": {"text/html"}, "X-Kept": {"a"}}, `{"of":"jam"}`, "text/html is not listed"},
		{"no media type", "GET", "/jars/1", 200, http.Header{"X-Kept": {"a"}}, `{"of":"jam"}`, "media type"},
		{"no JSON", "GET", "/jars/1", 200, kept, `{"of":`, "the body"},
		{"a member that is not listed", "GET", "/jars/1", 200, kept, `{"of":"jam","lid":1}`, "lid"},
		{"a member that is missing", "GET", "/jars/1", 200, kept, `{}`, "of"},
		{"a format", "GET", "/jars/1", 200, kept, `{"of":"stone"}`, "is no fruit"},
		{"a body where none is listed", "POST", "/jars/1", 204, http.Header{}, "{}", "a body is not listed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := c.Check(openapi.Exchange{Request: ask(t, test.method, test.path), Status: test.status, Header: test.header, Body: []byte(test.body)})
			if (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("found %v, want %q", err, test.wrong)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	c := read(t, document)
	for _, test := range []struct {
		body string
		want []openapi.Fault
	}{
		{`{"of":"jam"}`, nil},
		{`{}`, []openapi.Fault{{Pointer: "/of", Keyword: "required"}}},
		{`[]`, []openapi.Fault{{Pointer: "", Keyword: "type"}}},
		{`{"of":null,"a/b~c":1}`, []openapi.Fault{
			{Pointer: "/a~1b~0c", Keyword: "additionalProperties"},
			{Pointer: "/of", Keyword: "type", Null: true},
		}},
		{`{"of":"stones"}`, []openapi.Fault{{Pointer: "/of", Keyword: "maxLength"}}},
		{`{"of":"stone"}`, []openapi.Fault{{Pointer: "/of", Keyword: "format", Cause: errStone}}},
		{`{"notes":{"abcd":1},"of":"jam"}`, []openapi.Fault{
			{Pointer: "/notes", Keyword: "propertyNames"},
			{Pointer: "/notes/abcd", Keyword: "type"},
		}},
	} {
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		got, listed, err := c.Faults(ask(t, http.MethodPost, "/jars/1"), value)
		slices.SortFunc(got, func(a, b openapi.Fault) int { return strings.Compare(a.Pointer, b.Pointer) })
		if diff := cmp.Diff(test.want, got, cmpopts.EquateErrors()); diff != "" || !listed || err != nil {
			t.Errorf("%s: %t, %v (-want +got):\n%s", test.body, listed, err, diff)
		}
	}
	if got, listed, err := c.Faults(ask(t, http.MethodPost, "/jars/1"), nil); len(got) > 0 || !listed || err != nil {
		t.Errorf("no body: %v, %t, %v", got, listed, err)
	}
	if _, listed, err := c.Faults(ask(t, http.MethodGet, "/jars/1"), nil); listed || err != nil {
		t.Errorf("a GET has a body: %t, %v", listed, err)
	}
}

func TestOperations(t *testing.T) {
	t.Parallel()
	want := []openapi.Operation{
		{Method: "GET", Path: "/jars/all"},
		{Method: "GET", Path: "/jars/{id}"},
		{Method: "POST", Path: "/jars/{id}", Scopes: []string{"jars:write", "jars:read"}},
	}
	if diff := cmp.Diff(want, read(t, document).Operations(), cmpopts.IgnoreUnexported(openapi.Operation{})); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
}

func TestCheckExamples(t *testing.T) {
	t.Parallel()
	if checked, err := read(t, document).CheckExamples(); checked != 1 || err != nil {
		t.Errorf("%d examples: %v", checked, err)
	}
	wrong := strings.Replace(document, `value: {"of": "jam"}`, `value: {"of": 1}`, 1)
	if _, err := read(t, wrong).CheckExamples(); err == nil {
		t.Error("a wrong example is not found")
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	for name, document := range map[string]string{
		"no YAML":   "\t{",
		"no object": "[]",
		"an operation that does not say what it asks for": "paths: {/a: {get: {}}}",
	} {
		if _, err := openapi.Read([]byte(document), nil); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}

func TestHandler(t *testing.T) {
	t.Parallel()
	var seen openapi.Exchange
	handler := openapi.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		r.URL.Path = "/changed"
		w.Header().Set("X-Kept", "a")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "no")
	}), func(e openapi.Exchange) { seen = e })
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/jars/1", strings.NewReader("jam")))
	if answer.Code != http.StatusTeapot || answer.Body.String() != "no" {
		t.Errorf("the answer is %d %s", answer.Code, answer.Body)
	}
	got := []string{seen.Request.URL.Path, string(seen.Sent), http.StatusText(seen.Status), seen.Header.Get("X-Kept"), string(seen.Body)}
	if diff := cmp.Diff([]string{"/jars/1", "jam", "I'm a teapot", "a", "no"}, got); diff != "" {
		t.Errorf("the exchange (-want +got):\n%s", diff)
	}
}

func TestCheckWebhook(t *testing.T) {
	t.Parallel()
	c := read(t, document)
	id := http.Header{"Webhook-Id": {"01a1fd1a-0d2e-7b0b-8c55-4a36c2a6a1f0"}}
	for _, test := range []struct {
		name   string
		header http.Header
		body   string
		fine   bool
	}{
		{"sold", id, `{"of":"jam"}`, true},
		{"bought", id, `{"of":"jam"}`, false},
		{"sold", nil, `{"of":"jam"}`, false},
		{"sold", http.Header{"Webhook-Id": {"1"}}, `{"of":"jam"}`, false},
		{"sold", http.Header{"Webhook-Id": id["Webhook-Id"], "Shelf": {"12"}}, `{"of":"jam"}`, true},
		{"sold", http.Header{"Webhook-Id": id["Webhook-Id"], "Shelf": {"123"}}, `{"of":"jam"}`, false},
		{"sold", id, `{}`, false},
		{"sold", id, `{`, false},
	} {
		if err := c.CheckWebhook(test.name, test.header, []byte(test.body)); (err == nil) != test.fine {
			t.Errorf("%s with %v and %s: %v", test.name, test.header, test.body, err)
		}
	}
}
