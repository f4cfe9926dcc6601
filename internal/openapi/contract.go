// Package openapi judges what a server does by its contract, an OpenAPI 3.1
// document. It serves tests: no program of ours reads its contract at run time.
//
// It promises that an answer is refused whose status, header, media type or body
// the contract does not list. It takes the contract by the word: an object has
// the members that are listed and no other, unless the contract allows others by
// name. At paths and for methods that are not listed, the extension x-elsewhere
// says what is answered. HEAD is answered as GET is, without a body.
//
// Of the parameters of a request it says what does not fit (Misfits), and so it
// does of the body (Faults). What a server makes of that is for the test to judge.
// It knows no other package of this module and owns no table.
package openapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// Contract is an OpenAPI document. It is safe for use by several goroutines.
type Contract struct {
	doc        map[string]any
	operations []Operation
	compiler   *jsonschema.Compiler

	mu      sync.Mutex
	schemas map[string]*jsonschema.Schema // by pointer
}

// Formats tells by their names what strings and numbers of a format must be.
type Formats map[string]func(value any) error

const location = "contract.json" // the document's name among schemas

// Read reads a contract. Formats that JSON Schema does not know are held to if
// they are given.
func Read(document []byte, formats Formats) (*Contract, error) {
	var tree any
	if err := yaml.Unmarshal(document, &tree); err != nil {
		return nil, fmt.Errorf("read a contract: %w", err)
	}
	written, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("read a contract: %w", err)
	}
	plain, err := jsonschema.UnmarshalJSON(bytes.NewReader(written))
	if err != nil {
		return nil, fmt.Errorf("read a contract: %w", err)
	}
	doc, ok := plain.(map[string]any)
	if !ok {
		return nil, errors.New("read a contract: it is no object")
	}
	for _, schemas := range []string{"components", "paths", "webhooks", "x-elsewhere"} {
		closeObjects(doc[schemas])
	}
	c := &Contract{doc: doc, compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}}
	c.compiler.AssertFormat()
	for name, validate := range formats {
		c.compiler.RegisterFormat(&jsonschema.Format{Name: name, Validate: validate})
	}
	if err := c.compiler.AddResource(location, doc); err != nil {
		return nil, fmt.Errorf("read a contract: %w", err)
	}
	c.operations, err = c.readOperations()
	return c, err
}

// closeObjects says of every object with listed members that it has no others. A
// part of a composition is left open: it tells only what it adds.
func closeObjects(node any) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			closeObjects(child)
		}
	case map[string]any:
		_, lists := n["properties"]
		_, decided := n["additionalProperties"]
		if _, typed := n["type"]; lists && typed && !decided {
			n["additionalProperties"] = false
		}
		for _, child := range n {
			closeObjects(child)
		}
	}
}

// find follows a JSON Pointer through references, and returns the pointer of what
// it found. It is false where there is nothing.
func (c *Contract) find(pointer string) (at string, node any, found bool) {
	at, node = "", any(c.doc)
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		var ok bool
		if node, ok = child(node, unescape(token)); !ok {
			return "", nil, false
		}
		at += "/" + token
		if object, ok := node.(map[string]any); ok {
			if ref, ok := object["$ref"].(string); ok {
				if at, node, found = c.find(strings.TrimPrefix(ref, "#")); !found {
					return "", nil, false
				}
			}
		}
	}
	return at, node, true
}

// child is a member of an object, or an element of a list.
func child(node any, token string) (any, bool) {
	switch n := node.(type) {
	case map[string]any:
		member, ok := n[token]
		return member, ok
	case []any:
		i, err := strconv.Atoi(token)
		if err != nil || i < 0 || i >= len(n) {
			return nil, false
		}
		return n[i], true
	}
	return nil, false
}

// Node is the object at a JSON Pointer, behind references. Nil where there is none.
func (c *Contract) Node(pointer string) map[string]any {
	_, node := c.object(pointer)
	return node
}

// object is what find finds, if that is an object.
func (c *Contract) object(pointer string) (at string, node map[string]any) {
	at, found, _ := c.find(pointer)
	node, _ = found.(map[string]any)
	return at, node
}

// Schema compiles the schema at a JSON Pointer.
func (c *Contract) Schema(pointer string) (*jsonschema.Schema, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.schemas[pointer]; ok {
		return s, nil
	}
	tokens := strings.Split(pointer, "/")
	for i, token := range tokens {
		tokens[i] = url.PathEscape(token)
	}
	s, err := c.compiler.Compile(location + "#" + strings.Join(tokens, "/"))
	if err != nil {
		return nil, fmt.Errorf("compile the schema at %s: %w", pointer, err)
	}
	c.schemas[pointer] = s
	return s, nil
}

func escape(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

func unescape(token string) string {
	return strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
}
