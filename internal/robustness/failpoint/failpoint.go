// Package failpoint injects a fault into a program at a round trip of the test's choice. It
// stands between one program, the victim, and its servers: a PostgreSQL wire proxy
// before its database and a gate before what it calls by HTTP. Other processes see
// of a killed process only what it has sent, so the two sides of its round trips
// are all the moments at which a crash can matter. The proxy and the gate name each
// of them, and inject a fault at one.
//
// # Guarantees
//
//   - Every round trip of the victim is recorded, in the order in which it began.
//   - A plan fires at most once: before the request is forwarded, or after the
//     whole answer is read and none of it delivered. In the second case a commit is
//     durable and the victim does not know.
//   - No answer is false: an error is injected only in place of the work that it
//     would have undone, and a session that ends after a commit reports only its end.
//
// # Limits
//
// The package does not see what the victim does between two round trips, and reads
// nothing of their content but statements and tables. Connections to the database
// are plain text: a client that asks for TLS is refused it. A client must not ask for a
// part of an answer (Flush), nor call functions by the protocol's own message.
package failpoint

import "strconv"

// Point is a round trip of the victim, by its name and by its number among those
// of the same name.
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

// Side says on which side of the server's work a fault happens.
type Side string

// The sides of a round trip.
const (
	Before Side = "before" // nothing was forwarded
	After  Side = "after"  // the whole answer was read, and none of it delivered
)

// Kind is what a round trip is made of.
type Kind string

// The kinds of round trips.
const (
	Connect Kind = "connect" // a session with the database begins
	SQL     Kind = "sql"
	HTTP    Kind = "http"
)

// Fault is what happens at a point.
type Fault string

// The faults. Those that are named by a number are errors that the server answers:
// an SQLSTATE or an HTTP status.
const (
	Kill  Fault = "kill"  // the victim is killed
	Cut   Fault = "cut"   // the connection is closed, the victim lives
	Pause Fault = "pause" // the victim is stopped for a while and then continues

	Serialization Fault = "40001" // in place of the request
	Deadlock      Fault = "40P01" // in place of the request
	Shutdown      Fault = "57P01" // the server ends the session, before or after the work

	Broken      Fault = "500" // by an HTTP server, before or after its work
	Unavailable Fault = "503" // by a proxy before the HTTP server, after its work
)

// Faults are all that can happen at a round trip of a kind on a side. The first
// three are Kill, Cut and Pause.
func Faults(kind Kind, side Side) []Fault {
	all := []Fault{Kill, Cut, Pause}
	switch {
	case kind == SQL && side == Before:
		return append(all, Serialization, Deadlock, Shutdown)
	case kind == SQL:
		return append(all, Shutdown)
	case kind == HTTP && side == Before:
		return append(all, Broken)
	case kind == HTTP:
		return append(all, Broken, Unavailable)
	}
	return all
}
