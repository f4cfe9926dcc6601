package openapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/payonce/payonce/internal/openapi"
)

const asked = `
openapi: 3.1.0
paths:
  /jars/{id}:
    parameters:
      - $ref: "#/components/parameters/Id"
    get:
      security: []
      parameters:
        - {name: of, in: query, allowEmptyValue: true, schema: {type: string, format: fruit}}
        - {name: limit, in: query, schema: {type: integer, maximum: 10}}
        - {name: X-Lid, in: header, required: true, schema: {type: string, pattern: "^[a-z]+$"}, example: "7"}
    post:
      security: []
components:
  parameters:
    Id: {name: id, in: path, required: true, schema: {$ref: "#/components/schemas/Number"}}
  schemas:
    Number: {type: integer, format: int64}
`

func TestMisfits(t *testing.T) {
	t.Parallel()
	c := read(t, asked)
	lid := []string{"a"}
	for _, test := range []struct {
		path string
		lids []string
		want []openapi.Misfit
	}{
		{"/jars/1?of=jam&limit=10", lid, nil},
		{"/jars/1", []string{" a\t"}, nil},
		{"/jars/1?of=", lid, nil},
		{"/jars/-1", lid, nil},
		{"/jars/%31", lid, nil},

		{"/jars/1", nil, []openapi.Misfit{{In: "header", Name: "X-Lid", Keyword: "required"}}},
		{"/jars/1", []string{"a", "a"}, []openapi.Misfit{{In: "header", Name: "X-Lid", Keyword: "repeated"}}},
		{"/jars/1", []string{"A"}, []openapi.Misfit{{In: "header", Name: "X-Lid", Keyword: "pattern"}}},
		{"/jars/1", []string{"\xff"}, []openapi.Misfit{{In: "header", Name: "X-Lid", Keyword: "type"}}},
		{"/jars/one", lid, []openapi.Misfit{{In: "path", Name: "id", Keyword: "type"}}},
		{"/jars/+1", lid, []openapi.Misfit{{In: "path", Name: "id", Keyword: "type"}}},
		{"/jars/1?limit=01", lid, []openapi.Misfit{{In: "query", Name: "limit", Keyword: "type"}}},
		{"/jars/1?limit=1.0", lid, []openapi.Misfit{{In: "query", Name: "limit", Keyword: "type"}}},
		{"/jars/1?limit=", lid, []openapi.Misfit{{In: "query", Name: "limit", Keyword: "type"}}},
		{"/jars/1?limit=11", lid, []openapi.Misfit{{In: "query", Name: "limit", Keyword: "maximum"}}},
		{"/jars/1?limit=1&limit=1", lid, []openapi.Misfit{{In: "query", Name: "limit", Keyword: "repeated"}}},
		{"/jars/1?of=stone", lid, []openapi.Misfit{{In: "query", Name: "of", Keyword: "format", Cause: errStone}}},
		{"/jars/1?Of=jam", lid, []openapi.Misfit{{In: "query", Name: "Of", Keyword: "unlisted"}}},
		{"/jars/1?of=%zz", lid, []openapi.Misfit{{In: "query", Keyword: "type"}}},
	} {
		r := ask(t, http.MethodGet, test.path)
		r.Header["X-Lid"] = test.lids
		got, listed, err := c.Misfits(r)
		if diff := cmp.Diff(test.want, got, cmpopts.EquateErrors()); diff != "" || !listed || err != nil {
			t.Errorf("%s with %q: %t, %v (-want +got):\n%s", test.path, test.lids, listed, err, diff)
		}
	}
	if got, listed, err := c.Misfits(ask(t, http.MethodPost, "/jars/1?any=thing")); len(got) > 0 || !listed || err != nil {
		t.Errorf("where no query is listed: %v, %t, %v", got, listed, err)
	}
	if _, listed, err := c.Misfits(ask(t, http.MethodGet, "/pots")); listed || err != nil {
		t.Errorf("where nothing is listed: %t, %v", listed, err)
	}
}

// An example beside a parameter is in a list.
func TestCheckExamples_of_parameters(t *testing.T) {
	t.Parallel()
	if checked, err := read(t, asked).CheckExamples(); checked != 1 || err == nil {
		t.Errorf("%d examples: %v", checked, err)
	}
	right := strings.Replace(asked, `example: "7"`, `example: "a"`, 1)
	if checked, err := read(t, right).CheckExamples(); checked != 1 || err != nil {
		t.Errorf("%d examples: %v", checked, err)
	}
}
