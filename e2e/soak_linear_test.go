package e2e_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// keyCall is what is done with a key.
type keyCall string

const (
	orderA  keyCall = "post A"
	orderB  keyCall = "post B"
	readKey keyCall = "read"
)

type keyInput struct {
	key  int
	call keyCall
}

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

// keyState is the state of a key: free, or set and final. What no answer has shown
// yet is empty.
type keyState struct {
	order    keyCall
	id, body string
}

// after are the states in which a key may be after a call had this answer, none
// if it could not have had it. An unknown answer leaves two: the call
// has set the key, or not.
func (s keyState) after(call keyCall, out keyOutput) []keyState {
	set := keyState{order: call, id: out.id, body: out.body}
	same := (s.id == "" || s.id == out.id) && (s.body == "" || s.body == out.body)
	var holds bool
	switch out.kind {
	case keyUnknown:
		if s.order == "" && call != readKey {
			return []keyState{s, {order: call}}
		}
		holds = true
	case keyFirst:
		if s.order == "" {
			return []keyState{set}
		}
	case keyReplay:
		if s.order == call && same {
			return []keyState{set}
		}
	case keyReused:
		holds = s.order != "" && s.order != call
	case keyInFlight, keyAbsent:
		holds = s.order == ""
	case keyFound:
		if s.order != "" && (s.id == "" || s.id == out.id) {
			return []keyState{{order: s.order, id: out.id, body: s.body}}
		}
	}
	if holds {
		return []keyState{s}
	}
	return nil
}

// keyModel is one key, for porcupine.
func keyModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{keyState{}} },
		Step: func(state, input, output any) (next []any) {
			s, _ := state.(keyState)
			in, out := operation(porcupine.Operation{Input: input, Output: output})
			for _, s := range s.after(in.call, out) {
				next = append(next, s)
			}
			return next
		},
	}
	return model.ToModel()
}

// checkPatience bounds the search for an order of one key's history.
const checkPatience = 5 * time.Minute

// linearizable looks for an order of one key's history. A call without a certain
// answer may take effect at any time after it, so it ends after all others. Of several
// such calls for one order the first may set the key whenever a later one may, so it
// alone counts: the search would take exponentially long through all of them. A read
// without an answer says nothing.
func linearizable(history []porcupine.Operation) porcupine.CheckResult {
	var known []porcupine.Operation
	unknown := map[keyCall]porcupine.Operation{}
	last := int64(math.MinInt64)
	for _, o := range history {
		last = max(last, o.Return)
		in, out := operation(o)
		if out.kind != keyUnknown {
			known = append(known, o)
		} else if first, found := unknown[in.call]; in.call != readKey && (!found || o.Call < first.Call) {
			unknown[in.call] = o
		}
	}
	for _, o := range unknown {
		o.Return = last + 1
		known = append(known, o)
	}
	return porcupine.CheckOperationsTimeout(keyModel(), known, checkPatience)
}

// check checks every key's history, and prints one that has no order. It returns how many keys
// there were.
func (r *keyring) check(t *testing.T) int {
	t.Helper()
	byKey := map[int][]porcupine.Operation{}
	for _, o := range r.history {
		in, _ := operation(o)
		byKey[in.key] = append(byKey[in.key], o)
	}
	for key, history := range byKey {
		result := linearizable(history)
		if result == porcupine.Ok {
			continue
		}
		slices.SortFunc(history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		var lines strings.Builder
		for _, o := range history {
			in, out := operation(o)
			fmt.Fprintf(&lines, "\n  %v to %v, client %d: %s → %s %s", time.Duration(o.Call), time.Duration(o.Return), o.ClientId, in.call, out.kind, out.id)
		}
		t.Fatalf("key %s: of its %d operations the checker says %s:%s", r.keys[key].key, len(history), result, lines.String())
	}
	return len(byKey)
}

func operation(o porcupine.Operation) (in keyInput, out keyOutput) {
	in, _ = o.Input.(keyInput)
	out, _ = o.Output.(keyOutput)
	return in, out
}

// planted reads a history, such as "0-9 A first 1, 3-4 read absent".
func planted(t *testing.T, history string) (operations []porcupine.Operation) {
	t.Helper()
	calls := map[string]keyCall{"A": orderA, "B": orderB, "read": readKey}
	for one := range strings.SplitSeq(history, ", ") {
		var begin, end int64
		var call, answer, id string
		if n, err := fmt.Sscanf(one, "%d-%d %s %s %s", &begin, &end, &call, &answer, &id); n < 4 {
			t.Fatalf("%q: %v", one, err)
		}
		out := keyOutput{kind: keyKind(answer), id: id}
		if out.kind == keyFirst || out.kind == keyReplay {
			out.body = "body of " + id
		}
		operations = append(operations, porcupine.Operation{Input: keyInput{call: calls[call]}, Output: out, Call: begin, Return: end})
	}
	return operations
}

// TestLinearizable plants histories that no correct service could have, beside
// those that it may: the checker must tell them apart.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, history, want string }{
		{"one first answer, its replays, and another order refused", "0-9 A first 1, 1-2 B in-flight, 3-4 read absent, 5-20 A replayed 1, 10-11 read found 1, 12-13 B reused", "Ok"},
		{"an unknown call that took effect", "0-1 A unknown, 2-3 read found 1, 4-5 A replayed 1", "Ok"},
		{"an unknown call that took none", "0-1 A unknown, 2-3 B first 1, 4-5 A reused", "Ok"},
		{"an unknown call that took effect long after", "0-1 A unknown, 2-3 read absent, 4-5 B reused, 6-7 A replayed 1", "Ok"},
		{"unknown calls of both orders, of which the later one took effect", "0-1 A unknown, 1-2 B unknown, 2-3 A unknown, 4-5 B replayed 1", "Ok"},
		{"two different first answers", "0-1 A first 1, 2-3 A first 2", "Illegal"},
		{"two first answers at once", "0-5 A first 1, 1-4 A first 1", "Illegal"},
		{"a first answer that was lost", "0-1 A first 1, 2-3 read absent", "Illegal"},
		{"a lost one whose key serves another order", "0-1 A first 1, 2-3 B first 2", "Illegal"},
		{"a replay of what was never answered", "0-1 A replayed 1", "Illegal"},
		{"a replay with another body", "0-1 A first 1, 2-3 A replayed 2", "Illegal"},
		{"one unknown call that has set the key for both orders", "0-1 A unknown, 2-3 A replayed 1, 4-5 B replayed 1", "Illegal"},
		{"in flight after the answer was given", "0-1 A first 1, 2-3 A in-flight", "Illegal"},
		{"refused as another order's while the key is free", "0-1 A reused, 2-3 read absent", "Illegal"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := linearizable(planted(t, test.history)); string(got) != test.want {
				t.Errorf("the checker says %s, want %s", got, test.want)
			}
		})
	}
}
