// Package failpoint stands between one PostgreSQL client, the victim, and its server: a proxy
// of the wire protocol, which shows each round trip to a hook and injects the fault that the
// hook returns. Other processes see of a killed process only what it has sent, so the two
// sides of its round trips are all the moments at which a crash can matter.
//
// # Guarantees
//
//   - A hook sees every round trip twice: before its request is forwarded, and after the
//     whole answer is read and none of it delivered. In the second case a commit is durable
//     and the victim does not know.
//   - No answer is false: an error is injected only in place of the work that it
//     would have undone, and a session that ends after a commit reports only its end.
//
// # Limits
//
// The package does not see what the victim does between two round trips. A client that asks for TLS, or
// for the end of a statement, is cut off. A server must not ask for a password, and a client must not
// ask for a part of an answer (Flush), copy rows in, nor call functions by the protocol's own message.
//
// No library cuts PostgreSQL's protocol at a named statement. Tests of many packages need it, and harness
// starts programs alone.
package failpoint

// Side says on which side of the server's work a fault happens.
type Side string

// The sides of a round trip.
const (
	Before Side = "before" // nothing was forwarded
	After  Side = "after"  // the whole answer was read, and none of it delivered
)

// Fault is what happens at a round trip: None, Cut, Shutdown or, in place of the request,
// the error with this SQLSTATE.
type Fault string

// The faults that are no SQLSTATE of an error, or may come after the work too.
const (
	None     Fault = ""
	Cut      Fault = "cut"   // the connection is closed
	Shutdown Fault = "57P01" // the server ends the session
)

// Session is a session of the victim. Its pointer is its identity.
type Session struct {
	Settings string // with which it began
}

// Trip is one round trip of the victim. Its pointer is the same on both sides.
type Trip struct {
	Side       Side
	Session    *Session
	Connects   bool     // begins the session
	Prepared   []string // SQL
	Executed   []string // SQL
	Statements int      // that a batch executes; negative for what is no batch
	Opens      bool     // begins a transaction, and does nothing else
	Closes     bool     // ends a transaction, and does nothing else

	// Of the answer; the zero values before.

	Rows int  // that the last statement returned or changed
	Idle bool // no transaction is open after it
}

// Hook decides about a round trip on each of its sides: any Fault before, so that the server never
// has the request, and None, Cut or Shutdown after. It is called concurrently, and may take its
// time: the connection is held until it returns.
type Hook func(*Trip) Fault
