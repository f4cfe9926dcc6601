package pgtest

import "testing"

// Long leaves a test out of short mode, and says why: what it takes of the time.
func Long(tb testing.TB, why string) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("not run in short mode: " + why)
	}
}
