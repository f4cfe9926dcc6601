// Package e2e holds the tests by strangers: they start the real programs, see
// what anybody sees from outside (HTTP, the books of the sandbox, the tables)
// and kill, pause and cut off what runs. They share no code with what they test,
// so they cannot share a mistake with it; only the list of what must hold is the
// audit's, so that there is one.
//
// Every world that a test opens is judged when the test ends: all that was
// accepted is there once and has ended, the provider's books and the tables say
// the same, `payonce audit` finds nothing, every program ends with 0 on SIGTERM,
// and no log line holds a secret or a raw idempotency key.
//
// They do not show a power cut, a broken disk, or a provider that breaks its own
// contract. A kill between two round trips looks to the world like one after the
// first of them; TestWalk lands one at every round trip that a program makes.
//
// The tests need nothing but Go. They use the server of TEST_DATABASE_URL where
// that is set, and start one otherwise; a test that restarts a server or needs an
// unsafe one starts its own. With -short most of them are left out.
package e2e
