package e2e_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// keyCall is what is done with a key.
type keyCall string

const (
	orderA  keyCall = "post A"
	orderB  keyCall = "post B"
	readKey keyCall = "read"
)

// keyKind is what an answer says.
type keyKind string

const (
	keyUnknown  keyKind = "unknown"   // cut, timed out, or 503: it may have happened, or may yet
	keyFirst    keyKind = "first"     // 202: this call made the charge
	keyReplay   keyKind = "replayed"  // 202, as it was given before
	keyReused   keyKind = "reused"    // 422: the key is another order's
	keyInFlight keyKind = "in-flight" // 409: the key is being used, and has no answer yet
	keyFound    keyKind = "found"     // a read: the charge that the key led to
	keyAbsent   keyKind = "absent"    // a read: nothing
)

type keyOutput struct {
	kind keyKind
	id   string // of the charge
	body string // of a 202
}

// operation is a call with a key, and what came of it.
type operation struct {
	client, key  int
	call         keyCall
	began, ended time.Duration // since the soak began
	keyOutput
}

// linearizable reports whether the calls of one key have an order. A key is set once, so no search is needed: all
// answers must agree on order, id and body, and there must be a moment at which the key was set, which is no later than
// the end of any call that shows it set, and no earlier than the begin of any call that shows it free. A first answer, which is given once, says which call has set the
// key. Without one it was a call without a certain answer, at any time after that began.
func linearizable(history []operation) bool {
	from, to, firsts := time.Duration(0), time.Duration(math.MaxInt64), 0 // of that moment
	unanswered := map[keyCall]time.Duration{}                             // the first begin, of each order and of any
	var set operation                                                     // what is shown of the key
	for _, o := range history {
		switch o.kind {
		case keyUnknown:
			for _, order := range []keyCall{o.call, ""} {
				if first, found := unanswered[order]; o.call != readKey && (!found || o.began < first) {
					unanswered[order] = o.began
				}
			}
			continue
		case keyInFlight, keyAbsent:
			from = max(from, o.began)
			continue
		case keyFirst:
			from, firsts = max(from, o.began), firsts+1
		case keyReused:
			o.call = map[keyCall]keyCall{orderA: orderB, orderB: orderA}[o.call]
		case keyFound:
			o.call = "" // of either order
		case keyReplay:
		}
		to = min(to, o.ended)
		if !agree(&set.call, o.call) || !agree(&set.id, o.id) || !agree(&set.body, o.body) {
			return false
		}
	}
	if firsts == 0 && to < math.MaxInt64 {
		began, found := unanswered[set.call]
		if !found {
			return false
		}
		from = max(from, began)
	}
	return firsts <= 1 && from <= to
}

// agree reports whether a call shows what is known, where both say anything.
func agree[T ~string](known *T, shown T) bool {
	*known = cmp.Or(*known, shown)
	return shown == "" || shown == *known
}

// check checks every key's history, and prints one that has no order. It returns how many keys
// there were.
func (r *keyring) check(t *testing.T) int {
	t.Helper()
	byKey := map[int][]operation{}
	for _, o := range r.history {
		byKey[o.key] = append(byKey[o.key], o)
	}
	for key, history := range byKey {
		if linearizable(history) {
			continue
		}
		slices.SortFunc(history, func(a, b operation) int { return cmp.Compare(a.began, b.began) })
		var lines strings.Builder
		for _, o := range history {
			fmt.Fprintf(&lines, "\n  %v to %v, client %d: %s → %s %s", o.began, o.ended, o.client, o.call, o.kind, o.id)
		}
		t.Fatalf("key %s: its %d operations have no order:%s", r.keys[key].key, len(history), lines.String())
	}
	return len(byKey)
}

// planted reads a history, such as "0-9 A first 1, 3-4 read absent".
func planted(t *testing.T, history string) (operations []operation) {
	t.Helper()
	calls := map[string]keyCall{"A": orderA, "B": orderB, "read": readKey}
	for one := range strings.SplitSeq(history, ", ") {
		var o operation
		var call string
		if n, err := fmt.Sscanf(one, "%d-%d %s %s %s", &o.began, &o.ended, &call, &o.kind, &o.id); n < 4 {
			t.Fatalf("%q: %v", one, err)
		}
		if o.call = calls[call]; o.kind == keyFirst || o.kind == keyReplay {
			o.body = "body of " + o.id
		}
		operations = append(operations, o)
	}
	return operations
}

// TestLinearizable plants histories that no correct service could have, beside
// those that it may: the checker must tell them apart.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, history string
		want          bool
	}{
		{"one first answer, its replays, and another order refused", "0-9 A first 1, 1-2 B in-flight, 3-4 read absent, 5-20 A replayed 1, 10-11 read found 1, 12-13 B reused", true},
		{"an unknown call that took effect", "0-1 A unknown, 2-3 read found 1, 4-5 A replayed 1", true},
		{"an unknown call that took none", "0-1 A unknown, 2-3 B first 1, 4-5 A reused", true},
		{"an unknown call that took effect long after", "0-1 A unknown, 2-3 read absent, 4-5 B reused, 6-7 A replayed 1", true},
		{"unknown calls of both orders, of which the later one took effect", "0-1 A unknown, 1-2 B unknown, 2-3 A unknown, 4-5 B replayed 1", true},
		{"two different first answers", "0-1 A first 1, 2-3 A first 2", false},
		{"two first answers at once", "0-5 A first 1, 1-4 A first 1", false},
		{"a first answer that was lost", "0-1 A first 1, 2-3 read absent", false},
		{"a lost one whose key serves another order", "0-1 A first 1, 2-3 B first 2", false},
		{"a replay of what was never answered", "0-1 A replayed 1", false},
		{"a replay with another body", "0-1 A first 1, 2-3 A replayed 2", false},
		{"one unknown call that has set the key for both orders", "0-1 A unknown, 2-3 A replayed 1, 4-5 B replayed 1", false},
		{"in flight after the answer was given", "0-1 A first 1, 2-3 A in-flight", false},
		{"refused as another order's while the key is free", "0-1 A reused, 2-3 read absent", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := linearizable(planted(t, test.history)); got != test.want {
				t.Errorf("the checker says %v, want %v", got, test.want)
			}
		})
	}
}
