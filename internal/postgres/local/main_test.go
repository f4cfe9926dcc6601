package local_test

import (
	"os"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

// TestMain runs the tests, or, in a process that a test started, the process
// that the test kills. That one gets no help from testrun: what it leaves is
// what is under test.
func TestMain(m *testing.M) {
	if mode := os.Getenv(starterVariable); mode != "" {
		os.Exit(runStarter(mode))
	}
	testrun.Main(m)
}
