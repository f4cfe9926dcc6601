package openapi_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/openapi"
)

const document = `
openapi: 3.1.0
info: {title: jars, version: "1"}
paths:
  /jars/{id}:
    parameters:
      - {name: id, in: path, required: true, schema: {type: string}}
    get:
      responses:
        "200":
          description: A jar.
          headers:
            X-Kept: {required: true, schema: {type: string, pattern: "^[a-z]+$"}}
          content:
            application/json:
              schema: {$ref: "#/components/schemas/Jar"}
    post:
      requestBody:
        required: true
        content:
          application/json:
            schema: {$ref: "#/components/schemas/Jar"}
      responses:
        "204": {description: Kept.}
webhooks:
  sold:
    post:
      parameters:
        - {name: webhook-id, in: header, required: true, schema: {type: string, format: uuid}}
      requestBody:
        required: true
        content:
          application/json:
            schema: {$ref: "#/components/schemas/Jar"}
      responses:
        "200": {description: Thanks.}
x-elsewhere:
  responses:
    "404": {description: None., content: {application/problem+json: {schema: {type: object, properties: {why: {type: string}}}}}}
components:
  schemas:
    Jar:
      type: object
      required: [of]
      properties:
        of: {type: string, maxLength: 5}
        lid: {type: object, properties: {red: {type: boolean}}}
`

func read(t *testing.T) *openapi.Contract {
	t.Helper()
	c, err := openapi.Read([]byte(document), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCheck plants what an answer can have wrong.
func TestCheck(t *testing.T) {
	t.Parallel()
	c := read(t)
	kept := http.Header{"Content-Type": {"application/json; charset=utf-8"}, "X-Kept": {"a"}, "Date": {"now"}}
	trouble := http.Header{"Content-Type": {"application/problem+json"}}
	for _, test := range []struct {
		name, method, path string
		status             int
		header             http.Header
		body, want         string
	}{
		{"what is listed", "GET", "/jars/1", 200, kept, `{"of":"jam","lid":{"red":true}}`, ""},
		{"HEAD, without the body", "HEAD", "/jars/1", 200, kept, "", ""},
		{"another path", "GET", "/pots", 404, trouble, `{}`, ""},
		{"another method", "PUT", "/jars/1", 404, trouble, `{}`, ""},
		{"an empty parameter", "GET", "/jars/", 404, trouble, `{}`, ""},
		{"no body where none is listed", "POST", "/jars/1", 204, http.Header{}, "", ""},

		{"a status that is not listed", "GET", "/jars/1", 201, kept, `{"of":"jam"}`, "'201'"},
		{"a status that is not listed elsewhere", "GET", "/pots", 200, kept, `{}`, "'200'"},
		{"a header that is not listed", "GET", "/jars/1", 200, with(kept, "X-Other", "1"), `{"of":"jam"}`, "X-Other"},
		{"a header that is missing", "GET", "/jars/1", 200, http.Header{"Content-Type": {"application/json"}}, `{"of":"jam"}`, "X-Kept"},
		{"a header that is wrong", "GET", "/jars/1", 200, with(kept, "X-Kept", "1"), `{"of":"jam"}`, "x-kept"},
		{"another media type", "GET", "/jars/1", 200, with(kept, "Content-Type", "text/html"), `{"of":"jam"}`, "text/html"},
		{"no media type", "GET", "/jars/1", 200, http.Header{"X-Kept": {"a"}}, `{"of":"jam"}`, "content type"},
		{"no body", "GET", "/jars/1", 200, kept, "", "a body"},
		{"no JSON", "GET", "/jars/1", 200, kept, `{"of":`, "decode"},
		{"a member that is not listed", "GET", "/jars/1", 200, kept, `{"of":"jam","price":1}`, "price"},
		{"a member that is not listed, deeper", "GET", "/jars/1", 200, kept, `{"of":"jam","lid":{"blue":true}}`, "blue"},
		{"a member that is missing", "GET", "/jars/1", 200, kept, `{}`, "'of'"},
		{"a member that is wrong", "GET", "/jars/1", 200, kept, `{"of":"stones"}`, "/of"},
		{"a body where none is listed", "POST", "/jars/1", 204, http.Header{}, "{}", "a body"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequestWithContext(t.Context(), test.method, test.path, http.NoBody)
			err := c.Check(openapi.Exchange{Request: r, Status: test.status, Header: test.header, Body: []byte(test.body)})
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("found %v, want %q", err, test.want)
			}
		})
	}
}

func with(h http.Header, name, value string) http.Header {
	h = h.Clone()
	h.Set(name, value)
	return h
}

func TestCheckRequest(t *testing.T) {
	t.Parallel()
	c := read(t)
	for body, fine := range map[string]bool{`{"of":"jam"}`: true, "": false, "null": false, `{}`: false, `{"of":"stones"}`: false, `{"of":1}`: false} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/jars/1", http.NoBody)
		r.Header.Set("Content-Type", "application/json")
		if err := c.CheckRequest(openapi.Exchange{Request: r, Sent: []byte(body)}); (err == nil) != fine {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestCheckWebhook(t *testing.T) {
	t.Parallel()
	c := read(t)
	json := http.Header{"Content-Type": {"application/json"}}
	id := with(json, "webhook-id", "01a1fd1a-0d2e-7b0b-8c55-4a36c2a6a1f0")
	for _, test := range []struct {
		name   string
		header http.Header
		body   string
		fine   bool
	}{
		{"sold", id, `{"of":"jam"}`, true},
		{"bought", id, `{"of":"jam"}`, false},
		{"sold", json, `{"of":"jam"}`, false},
		{"sold", with(id, "webhook-id", "1"), `{"of":"jam"}`, false},
		{"sold", id, `{}`, false},
		{"sold", id, `{`, false},
	} {
		if err := c.CheckWebhook(test.name, test.header, []byte(test.body)); (err == nil) != test.fine {
			t.Errorf("%s with %v and %s: %v", test.name, test.header, test.body, err)
		}
	}
}

func TestRead_refusesWhatIsNoContract(t *testing.T) {
	t.Parallel()
	for _, document := range []string{"\t{", "[]", "openapi: 3.1.0"} {
		if _, err := openapi.Read([]byte(document), nil); err == nil {
			t.Errorf("%q is read", document)
		}
	}
}
