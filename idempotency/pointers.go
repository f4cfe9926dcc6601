package idempotency

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const (
	mostPointers   = 100
	longestPointer = 1000 // bytes
)

// Pointers are the JSON Pointers (RFC 6901) to the deepest members in which two
// JSON texts differ, sorted; none exactly if Canonical makes them one. A member
// that only one of them has is pointed at itself, an element of an array by its
// index. A text that is no JSON is compared as a whole, which is the pointer "".
//
// There are no more than 100, and none is longer than 1000 bytes: what lies deeper
// is pointed at by the last member on the way to it.
func Pointers(a, b []byte) []string {
	first, errFirst := decode(a)
	second, errSecond := decode(b)
	if errFirst != nil || errSecond != nil {
		if bytes.Equal(a, b) {
			return nil
		}
		return []string{""}
	}
	var d differences
	d.compare(place{}, first, second)
	slices.Sort(d.found)
	return slices.Compact(d.found)
}

// differences are found in one order, whichever text is the first one: which of
// too many are kept depends on it.
type differences struct{ found []string }

func (d *differences) full() bool { return len(d.found) == mostPointers }

// add names a member, once where it is named for all that lies too deep below it.
func (d *differences) add(at place) {
	if last := len(d.found) - 1; !d.full() && (last < 0 || d.found[last] != at.pointer) {
		d.found = append(d.found, at.pointer)
	}
}

// compare adds what differs at and below a place.
func (d *differences) compare(at place, a, b any) {
	switch a := a.(type) {
	case map[string]any:
		if b, ok := b.(map[string]any); ok {
			d.compareObjects(at, a, b)
			return
		}
	case []any:
		if b, ok := b.([]any); ok {
			d.compareArrays(at, a, b)
			return
		}
	case string, json.Number, bool, nil:
		if a == b {
			return
		}
	}
	d.add(at)
}

func (d *differences) compareObjects(at place, a, b map[string]any) {
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	all := maps.Clone(a)
	maps.Copy(all, b)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if d.full() {
			return
		}
		first, inFirst := a[name]
		second, inSecond := b[name]
		if below := at.below(escape.Replace(name)); inFirst && inSecond {
			d.compare(below, first, second)
		} else {
			d.add(below)
		}
	}
}

func (d *differences) compareArrays(at place, a, b []any) {
	for i := range max(len(a), len(b)) {
		if d.full() {
			return
		}
		if below := at.below(strconv.Itoa(i)); i < len(a) && i < len(b) {
			d.compare(below, a[i], b[i])
		} else {
			d.add(below)
		}
	}
}

// place is a member, or what is too deep below the one that the pointer names.
type place struct {
	pointer string
	beyond  bool
}

func (p place) below(name string) place {
	if p.beyond || len(p.pointer)+1+len(name) > longestPointer {
		return place{p.pointer, true}
	}
	return place{p.pointer + "/" + name, false}
}
