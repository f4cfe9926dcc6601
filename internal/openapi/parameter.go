package openapi

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Parameter is what a request may carry beside its body.
type Parameter struct {
	In   string // path, query or header
	Name string
	// Schema is the pointer of its schema, behind references.
	Schema string

	required, emptyIsNone bool
}

// Misfit is one thing that the contract has against a parameter.
type Misfit struct {
	In   string
	Name string // "" where the query cannot be read
	// Keyword is the schema's that refuses, or else: required, repeated, unlisted,
	// and type for what cannot be read.
	Keyword string
	// Cause is what a format has against it, or nil.
	Cause error
}

// Parameters are those of an operation, and of its path.
func (c *Contract) Parameters(o Operation) []Parameter {
	var all []Parameter
	for _, owner := range []string{o.pointer[:strings.LastIndex(o.pointer, "/")], o.pointer} {
		_, list, _ := c.find(owner + "/parameters")
		listed, _ := list.([]any)
		for i := range listed {
			at, node := c.object(owner + "/parameters/" + strconv.Itoa(i))
			schema, _ := c.object(at + "/schema")
			p := Parameter{In: fmt.Sprint(node["in"]), Name: fmt.Sprint(node["name"]), Schema: schema}
			p.required, _ = node["required"].(bool)
			p.emptyIsNone, _ = node["allowEmptyValue"].(bool)
			all = append(all, p)
		}
	}
	return all
}

// Misfits are all that the contract has against the parameters of a request. It
// is false for a request that is not listed. Where parameters of the query are
// listed, others are misfits. Headers that are not listed are no parameters.
func (c *Contract) Misfits(r *http.Request) (all []Misfit, listed bool, err error) {
	o, listed := c.operation(r)
	if !listed {
		return nil, false, nil
	}
	parameters := c.Parameters(o)
	query, readable := parse(r.URL.RawQuery)
	if of := in("query", parameters); len(of) > 0 {
		if !readable {
			return []Misfit{{In: "query", Keyword: "type"}}, true, nil
		}
		for name := range query {
			if !slices.ContainsFunc(of, func(p Parameter) bool { return p.Name == name }) {
				all = append(all, Misfit{In: "query", Name: name, Keyword: "unlisted"})
			}
		}
	}
	for _, p := range parameters {
		m, err := c.judge(p, p.values(o, r, query))
		if err != nil {
			return nil, true, err
		}
		all = append(all, m...)
	}
	return all, true, nil
}

func parse(query string) (values url.Values, readable bool) {
	values, err := url.ParseQuery(query)
	return values, err == nil
}

func in(where string, parameters []Parameter) []Parameter {
	return slices.DeleteFunc(slices.Clone(parameters), func(p Parameter) bool { return p.In != where })
}

// values are those that a request has of a parameter.
func (p Parameter) values(o Operation, r *http.Request, query url.Values) []string {
	switch p.In {
	case "query":
		return query[p.Name]
	case "header":
		return r.Header.Values(p.Name)
	}
	at := slices.Index(strings.Split(o.Path, "/"), "{"+p.Name+"}")
	text, err := url.PathUnescape(strings.Split(r.URL.EscapedPath(), "/")[at])
	if err != nil {
		return []string{"\xff"} // no text: it cannot be in the path of a request
	}
	return []string{text}
}

func (c *Contract) judge(p Parameter, values []string) ([]Misfit, error) {
	misfit := func(keyword string, cause error) []Misfit {
		return []Misfit{{In: p.In, Name: p.Name, Keyword: keyword, Cause: cause}}
	}
	switch {
	case len(values) > 1:
		return misfit("repeated", nil), nil
	case len(values) == 0 && p.required:
		return misfit("required", nil), nil
	case len(values) == 0, values[0] == "" && p.emptyIsNone:
		return nil, nil
	}
	value, readable := c.value(p, values[0])
	if !readable {
		return misfit("type", nil), nil
	}
	err := c.validate(p.Schema, value)
	var refused *jsonschema.ValidationError
	if err != nil && !errors.As(err, &refused) {
		return nil, err
	}
	var all []Misfit
	for _, f := range faults(refused) {
		all = append(all, misfit(f.Keyword, f.Cause)...)
	}
	return all, nil
}

// integer is how one is written outside JSON: in one way.
func integer() *regexp.Regexp { return regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`) }

// value reads a parameter as its schema has it. It is false where the text has
// another type. White space around a header does not count.
func (c *Contract) value(p Parameter, text string) (value any, readable bool) {
	if p.In == "header" {
		text = strings.Trim(text, " \t")
	}
	if !utf8.ValidString(text) {
		return nil, false
	}
	if kind := c.Node(p.Schema)["type"]; kind != "integer" {
		return text, true
	}
	if !integer().MatchString(text) {
		return nil, false
	}
	n, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	return n, err == nil
}
