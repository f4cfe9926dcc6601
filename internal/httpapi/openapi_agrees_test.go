package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/payonce/payonce/internal/openapi"
)

// verdict is what is said of a body: 0 is nothing against it, 400 that it cannot
// be read, 422 that the members at these pointers have wrong values.
type verdict struct {
	Status   int
	Pointers []string
}

// agrees compares what we say of a body with what the contract says. They must
// be the same, but for the pointers within an item that is null: to the contract
// the item is wrong, to us each of its members.
func agrees(c *openapi.Contract, e openapi.Exchange) error {
	ours, said := our(e)
	if !said || e.Request.URL.Path == "/v1/webhooks/stripe" { // an event is read for what is of use
		return nil
	}
	theirs, nulls, listed, err := contracts(c, e)
	if err != nil || !listed {
		return err
	}
	ours.Pointers = slices.DeleteFunc(ours.Pointers, func(p string) bool {
		return slices.ContainsFunc(nulls, func(null string) bool { return strings.HasPrefix(p, null+"/") })
	})
	theirs.Pointers = slices.DeleteFunc(theirs.Pointers, func(p string) bool { return slices.Contains(nulls, p) })
	if diff := cmp.Diff(theirs, ours); diff != "" {
		return fmt.Errorf("%s %s with %.2000q is judged (-by the contract +by us):\n%s", e.Request.Method, e.Request.URL.Path, e.Sent, diff)
	}
	return nil
}

// our reads our verdict from the answer. It is false where the answer was found
// before the body was looked at, or where it could not be carried out.
func our(e openapi.Exchange) (v verdict, said bool) {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return verdict{}, false
	}
	var p problem
	if e.Header.Get("Content-Type") == "application/problem+json" {
		if err := json.Unmarshal(e.Body, &p); err != nil {
			return verdict{}, false
		}
	}
	switch {
	case p.Type == "/problems/malformed":
		v.Status = http.StatusBadRequest
	case p.Type == "/problems/validation" && len(p.Errors) > 0: // else it is the key
		v.Status, v.Pointers = http.StatusUnprocessableEntity, set(p.pointers())
	}
	return v, true
}

// contracts is the contract's verdict, with what a schema cannot say: JSON is read
// strictly, a pair of metadata that is null is not there, and no SKU comes twice.
func contracts(c *openapi.Contract, e openapi.Exchange) (v verdict, nulls []string, listed bool, err error) {
	unreadable := verdict{Status: http.StatusBadRequest}
	var value any
	if len(e.Sent) > 0 {
		if !jsontext.Value(e.Sent).IsValid() {
			return unreadable, nil, e.Request.Method == http.MethodPost, nil
		}
		if value, err = jsonschema.UnmarshalJSON(bytes.NewReader(e.Sent)); err != nil {
			return verdict{}, nil, true, err
		}
		if value == nil {
			return unreadable, nil, true, nil
		}
	}
	body, _ := value.(map[string]any)
	if metadata, ok := body["metadata"].(map[string]any); ok {
		for name, v := range metadata {
			if v == nil && !strings.ContainsRune(name, 0) && len([]rune(name)) <= 500 && !mayHoldCard(name) {
				delete(metadata, name)
			}
		}
	}
	faults, listed, err := c.Faults(e.Request, value)
	for _, f := range faults {
		_, notInt64 := errors.AsType[*strconv.NumError](f.Cause)
		switch {
		case f.Null && strings.HasPrefix(f.Pointer, "/items/") && strings.Count(f.Pointer, "/") == 2:
			nulls = append(nulls, f.Pointer)
		case f.Null && f.Pointer != "": // is missing
		case f.Keyword == "type", f.Keyword == "additionalProperties", errors.Is(f.Cause, errNUL), notInt64:
			return unreadable, nil, listed, err
		}
		v.Pointers = append(v.Pointers, f.Pointer)
	}
	v.Pointers = append(v.Pointers, repeated(body)...)
	for _, f := range faults {
		if f.Keyword == "maxItems" || f.Keyword == "maxProperties" { // nobody looks into what is too long
			v.Pointers = slices.DeleteFunc(v.Pointers, func(p string) bool { return strings.HasPrefix(p, f.Pointer+"/") })
		}
	}
	if v.Pointers = set(v.Pointers); len(v.Pointers) > 0 {
		v.Status = http.StatusUnprocessableEntity
	}
	return v, nulls, listed, err
}

// repeated points to every SKU that an earlier item has.
func repeated(body map[string]any) (pointers []string) {
	seen := map[string]bool{}
	items, _ := body["items"].([]any)
	for i, item := range items {
		members, _ := item.(map[string]any)
		sku, _ := members["sku"].(string)
		if sku != "" && seen[sku] {
			pointers = append(pointers, fmt.Sprintf("/items/%d/sku", i))
		}
		seen[sku] = true
	}
	return pointers
}

func set(pointers []string) []string {
	slices.Sort(pointers)
	return slices.Compact(pointers)
}
