package openapi

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// Fault is one thing that a schema has against a value.
type Fault struct {
	// Pointer is the JSON Pointer of the member that is wrong, or is missing.
	Pointer string
	// Keyword is the schema's that refuses: "maxLength".
	Keyword string
	// Cause is what a format has against it, or nil.
	Cause error
	// Null says that it is null and has another type to be.
	Null bool
}

// Faults are all that the contract has against the JSON body of a request, as
// jsonschema.UnmarshalJSON reads one; nil is no body. It is false for a request
// that no body is listed for.
func (c *Contract) Faults(r *http.Request, body any) (all []Fault, listed bool, err error) {
	o, found := c.operation(r)
	if !found {
		return nil, false, nil
	}
	at, node := c.object(o.pointer + "/requestBody")
	if node == nil {
		return nil, false, nil
	}
	if required, _ := node["required"].(bool); body == nil && !required {
		return nil, true, nil
	}
	err = c.validate(at+"/content/application~1json/schema", body)
	var refused *jsonschema.ValidationError
	if err != nil && !errors.As(err, &refused) {
		return nil, true, err
	}
	return faults(refused), true, nil
}

func faults(e *jsonschema.ValidationError) []Fault {
	if e == nil {
		return nil
	}
	at := pointer(e.InstanceLocation)
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		return each(at, "required", k.Missing)
	case *kind.AdditionalProperties:
		return each(at, "additionalProperties", k.Properties)
	case *kind.PropertyNames: // its own location is overwritten: the library shares a slice
		tokens := strings.Split(e.SchemaURL, "/")
		f := Fault{Pointer: "/" + tokens[len(tokens)-2], Keyword: "propertyNames"}
		for _, cause := range e.Causes {
			for _, inner := range faults(cause) {
				f.Cause = cmp.Or(f.Cause, inner.Cause)
			}
		}
		return []Fault{f}
	case *kind.Format:
		return []Fault{{Pointer: at, Keyword: "format", Cause: k.Err}}
	case *kind.Type:
		return []Fault{{Pointer: at, Keyword: "type", Null: k.Got == "null"}}
	}
	if len(e.Causes) == 0 {
		path := e.ErrorKind.KeywordPath()
		return []Fault{{Pointer: at, Keyword: path[len(path)-1]}}
	}
	var all []Fault
	for _, cause := range e.Causes {
		all = append(all, faults(cause)...)
	}
	return all
}

func each(at, keyword string, names []string) []Fault {
	all := make([]Fault, len(names))
	for i, name := range names {
		all[i] = Fault{Pointer: at + "/" + escape(name), Keyword: keyword}
	}
	return all
}

func pointer(tokens []string) string {
	var b strings.Builder
	for _, token := range tokens {
		b.WriteString("/" + escape(token))
	}
	return b.String()
}

// CheckExamples holds every example to the schema that it stands beside.
func (c *Contract) CheckExamples() (checked int, err error) {
	var wrong []error
	c.walk("", c.doc, func(at string, node map[string]any) {
		if node["schema"] == nil {
			return
		}
		examples, _ := node["examples"].(map[string]any)
		values := map[string]any{}
		for name := range examples {
			_, example := c.object(at + "/examples/" + escape(name))
			values[name] = example["value"]
		}
		if example, ok := node["example"]; ok {
			values["example"] = example
		}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			checked++
			if err := c.validate(at+"/schema", values[name]); err != nil {
				wrong = append(wrong, errors.New(at+", "+name+": "+err.Error()))
			}
		}
	})
	return checked, errors.Join(wrong...)
}

// walk visits every object of the document.
func (c *Contract) walk(at string, node any, visit func(at string, node map[string]any)) {
	switch n := node.(type) {
	case []any:
		for i, child := range n {
			c.walk(at+"/"+strconv.Itoa(i), child, visit)
		}
	case map[string]any:
		visit(at, n)
		for name, child := range n {
			c.walk(at+"/"+escape(name), child, visit)
		}
	}
}
