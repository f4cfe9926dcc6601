// Package e2e holds the end-to-end tests. They start the real programs, use them by
// HTTP and the operator's tool, and kill, pause and disconnect them. They share no
// code with what they test.
//
// Read a test as given, when, then. deploy starts a deployment: databases, a sandbox
// (the provider and the merchant's shop), apis and workers. When the test ends, every
// deployment is checked:
//
//   - every accepted charge and refund is in the ledger once and has its outcome,
//   - the records of the provider and the shop agree with the ledger,
//   - `payonce audit` finds nothing,
//   - every program exits with 0 on SIGTERM, and no log holds a secret or a key.
//
// The promises, by file:
//
//	operation  workers that are killed, stopped or idle; an upgrade; the end of retention; a dump from
//	           the past, restored elsewhere
//	security   hostile clients, and outputs without secrets
//	pages      what the tutorial, the manual and the how-to show
//	demo       what a visitor does with it, and that nothing of it is left
//	browser    the console's pages in Chromium (-browser)
//	failover   the loss of a primary, also with Patroni (-failovers=20)
//	walk       a fault at every round trip of the api and the worker
//	soak       the same for long, with many requests at once (-soak)
//	mutants    planted bugs that the tests above must catch (-mutants=all)
//
// They do not show a power cut, a broken disk, or a provider that breaks its own
// contract.
//
// The tests need only Go; pages are skipped without curl, and Patroni and the browser need their packages. They use the server of
// TEST_DATABASE_URL, or else start one. With -short none of them starts a program.
package e2e
