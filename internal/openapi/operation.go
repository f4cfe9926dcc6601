package openapi

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Operation is a method at a path.
type Operation struct {
	Method string
	// Path has its parameters in braces: /v1/charges/{id}.
	Path string
	// Scopes are what the caller's key must be for. Nil where none is asked for.
	Scopes []string

	pointer string
}

// Operations are all that the contract lists, by path and method.
func (c *Contract) Operations() []Operation { return slices.Clone(c.operations) }

func (c *Contract) readOperations() ([]Operation, error) {
	var operations []Operation
	_, paths := c.object("/paths")
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		at, item := c.object("/paths/" + escape(path))
		for _, name := range slices.Sorted(maps.Keys(item)) {
			method := strings.ToUpper(name)
			if !slices.Contains([]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, method) {
				continue
			}
			o := Operation{Method: method, Path: path, pointer: at + "/" + name}
			_, node := c.object(o.pointer)
			security, ok := node["security"].([]any)
			if !ok {
				return nil, fmt.Errorf("read a contract: %s %s does not say what it asks for", method, path)
			}
			for _, requirement := range security {
				schemes, _ := requirement.(map[string]any)
				for _, scopes := range schemes {
					o.Scopes = append(o.Scopes, texts(scopes)...)
				}
			}
			operations = append(operations, o)
		}
	}
	return operations, nil
}

func texts(list any) (all []string) {
	values, _ := list.([]any)
	for _, v := range values {
		if s, ok := v.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

// operation is the one that answers a request. It is false where none is listed.
// Of several paths the one with the fewest parameters counts.
func (c *Contract) operation(r *http.Request) (Operation, bool) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	var best Operation
	found := false
	for _, o := range c.operations {
		if o.Method != method || !matches(o.Path, r.URL.EscapedPath()) {
			continue
		}
		if !found || strings.Count(o.Path, "{") < strings.Count(best.Path, "{") {
			best, found = o, true
		}
	}
	return best, found
}

func matches(template, path string) bool {
	want, got := strings.Split(template, "/"), strings.Split(path, "/")
	if len(want) != len(got) {
		return false
	}
	for i := range want {
		if want[i] != got[i] && (!strings.HasPrefix(want[i], "{") || got[i] == "") {
			return false
		}
	}
	return true
}
