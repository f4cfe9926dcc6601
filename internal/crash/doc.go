// Package crash stands between one program, the victim, and the world: a
// PostgreSQL wire proxy before its database and a gate before what it calls by
// HTTP. A process that is killed can be told apart only by what it has sent and
// received, so the ends of its round trips are all the moments at which a crash
// can matter. The instruments name each of them, and strike at one.
//
// It promises that
//
//   - every round trip of the victim is seen, in the order in which it began;
//   - a plan strikes at most once: before the request was forwarded, or after
//     the whole answer was read and none of it delivered, so that a commit is
//     durable and nobody knows;
//   - the world never lies: an error is injected only in place of the work that
//     it would have undone, and a session that ends after a commit says only
//     that it ends.
//
// It does not promise to see what the victim does between two round trips, and it
// knows nothing of what is said on them but the names of statements and tables.
// Connections to the database are plain text; one that asks for TLS is refused it.
package crash
