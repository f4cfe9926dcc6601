package crash

import (
	"fmt"
	"strconv"
	"strings"
)

// Point is a round trip of the victim's, by its name and by how many of that name
// have come.
type Point struct {
	Name       string
	Occurrence int // from 1
}

// String is the name, and from the second occurrence on its number: "commit#2".
func (p Point) String() string {
	if p.Occurrence <= 1 {
		return p.Name
	}
	return p.Name + "#" + strconv.Itoa(p.Occurrence)
}

// ParsePoint reads what String writes.
func ParsePoint(s string) (Point, error) {
	name, number, numbered := strings.Cut(s, "#")
	p := Point{Name: name, Occurrence: 1}
	if numbered {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 {
			return Point{}, fmt.Errorf("point %q: its occurrence is no number from 1", s)
		}
		p.Occurrence = n
	}
	if name == "" {
		return Point{}, fmt.Errorf("point %q has no name", s)
	}
	return p, nil
}

// Side says on which side of the world's work a plan strikes.
type Side string

// The sides of a round trip.
const (
	Before Side = "before" // nothing was forwarded
	After  Side = "after"  // the whole answer was read, and none of it delivered
)

// Fault is what happens at a point.
type Fault string

// The faults. Those that are named by a number are errors that the world answers:
// an SQLSTATE or an HTTP status.
const (
	Kill  Fault = "kill"  // the victim is killed
	Cut   Fault = "cut"   // the connection dies, the victim lives
	Pause Fault = "pause" // the victim is stopped for a while, then goes on where it was

	Serialization Fault = "40001" // in place of the request
	Deadlock      Fault = "40P01" // in place of the request
	Shutdown      Fault = "57P01" // the session is ended by the server, before or after the work

	Broken      Fault = "500" // by an HTTP server, before or after its work
	Unavailable Fault = "503" // by something before the HTTP server, after its work
)

// Faults are all that can happen at a round trip of a kind on a side.
func Faults(kind Kind, side Side) []Fault {
	all := []Fault{Kill, Cut, Pause}
	switch kind {
	case Connect:
		return all
	case SQL:
		if side == Before {
			return append(all, Serialization, Deadlock, Shutdown)
		}
		return append(all, Shutdown)
	case HTTP:
		if side == Before {
			return append(all, Broken)
		}
		return append(all, Broken, Unavailable)
	default:
		return nil
	}
}
