package domain

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// Event is something that happened to a charge. It says what it changes, and when it is legal. The set is sealed: only
// this package adds to it.
type Event interface {
	// apply changes the charge, whose version is already that of the event. It never
	// fails: what is stored has happened.
	apply(c *Charge)
	// allowedIn reports whether the event may be the next one of c.
	allowedIn(c Charge) bool
}

// EventType is the registration of one type of event.
type EventType struct {
	Name    string // in the ledger, a literal: it outlives the Go type
	Webhook string // of a webhook event, the type of the webhook that the merchant gets for it; else empty
	Request bool   // the api writes it to start work; a stored one that is not legal is void, see Charge.Voids
	Zero    Event  // of the Go type
}

var (
	eventTypes = slices.Concat(chargeEvents, eventsOf(steps), refundEvents, disputeEvents, eventsOf(subscribers))
	byName     = typesBy(func(t EventType) string { return t.Name })
	byGoType   = typesBy(func(t EventType) reflect.Type { return reflect.TypeOf(t.Zero) })
)

func typesBy[K comparable](key func(EventType) K) map[K]EventType {
	types := map[K]EventType{}
	for _, t := range eventTypes {
		types[key(t)] = t
	}
	return types
}

// EventTypes are the types of all events.
func EventTypes() []EventType { return slices.Clone(eventTypes) }

// EventTypeNamed is the type with a stored name; the zero EventType if there is none.
func EventTypeNamed(name string) EventType { return byName[name] }

// TypeOf is the stored name of an event; "" if its type is in no list.
func TypeOf(e Event) string {
	if void, unreadable := e.(Unreadable); unreadable {
		return void.Name
	}
	return byGoType[reflect.TypeOf(e)].Name
}

// ErrUnknownType is returned by Decode for an event or a step that this program does
// not know: a newer program wrote it.
var ErrUnknownType = errors.New("unknown event type")

// Decode reads a stored event, which json.Marshal wrote. A request whose data cannot be read is Unreadable, and no error.
func Decode(name string, data []byte) (Event, error) {
	t, known := byName[name]
	if !known {
		return nil, fmt.Errorf("decode %q: %w", name, ErrUnknownType)
	}
	decoded := reflect.New(reflect.TypeOf(t.Zero))
	if err := json.Unmarshal(data, decoded.Interface()); err != nil && t.Request {
		return Unreadable{Name: name}, nil
	} else if err != nil {
		return nil, fmt.Errorf("decode %s: %w", name, err)
	}
	e, _ := reflect.TypeAssert[Event](decoded.Elem())
	if first, opens := e.(ChargeRequested); opens {
		for _, step := range first.Steps {
			if _, known := stepNamed(step); !known {
				return nil, fmt.Errorf("decode %s: step %q: %w", name, step, ErrUnknownType)
			}
		}
	}
	return e, nil
}

// Unreadable is a request whose data is not that of its type. It is void, see Charge.Voids.
type Unreadable struct{ Name string }

func (Unreadable) apply(*Charge)         {}
func (Unreadable) allowedIn(Charge) bool { return false }
