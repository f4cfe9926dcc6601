package idempotency

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// Pointers are the JSON Pointers (RFC 6901) to the deepest members in which two
// JSON texts differ, sorted; none exactly if Canonical makes them one. A member
// that only one of them has is pointed at itself, an element of an array by its
// index. A text that is no JSON is compared as a whole, which is the pointer "".
func Pointers(a, b []byte) []string {
	first, errFirst := decode(a)
	second, errSecond := decode(b)
	if errFirst != nil || errSecond != nil {
		if bytes.Equal(a, b) {
			return nil
		}
		return []string{""}
	}
	pointers := diff(nil, "", first, second)
	slices.Sort(pointers)
	return pointers
}

// diff appends what differs at and below the pointer at.
func diff(out []string, at string, a, b any) []string {
	switch a := a.(type) {
	case map[string]any:
		if b, ok := b.(map[string]any); ok {
			return diffObjects(out, at, a, b)
		}
	case []any:
		if b, ok := b.([]any); ok {
			return diffArrays(out, at, a, b)
		}
	case string, json.Number, bool, nil:
		if a == b {
			return out
		}
	}
	return append(out, at)
}

func diffObjects(out []string, at string, a, b map[string]any) []string {
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	for name, value := range a {
		below := at + "/" + escape.Replace(name)
		if other, ok := b[name]; ok {
			out = diff(out, below, value, other)
		} else {
			out = append(out, below)
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			out = append(out, at+"/"+escape.Replace(name))
		}
	}
	return out
}

func diffArrays(out []string, at string, a, b []any) []string {
	for i := range max(len(a), len(b)) {
		below := at + "/" + strconv.Itoa(i)
		if i < len(a) && i < len(b) {
			out = diff(out, below, a[i], b[i])
		} else {
			out = append(out, below)
		}
	}
	return out
}
