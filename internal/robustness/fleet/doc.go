// Package fleet builds the real programs and runs them as child processes,
// for the demo and for tests that kill them.
//
// It promises that the process it signals is the program itself, that a
// program runs with exactly the environment it was given, that it comes back
// on the address it had, and that no program outlives this process, however
// this process ends. A program runs in a session of its own: the terminal's
// Ctrl-C reaches only the parent, which then stops the others in order.
//
// It does not restart what dies by itself, it knows nothing of what the
// programs do, and it needs /bin/sh.
package fleet
