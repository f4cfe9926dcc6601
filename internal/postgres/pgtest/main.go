package pgtest

import (
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package, with [Overlap], and fails where they leave a
// goroutine behind. It is for TestMain, and does not return.
func Main(m *testing.M) {
	Overlap()
	goleak.VerifyTestMain(patient{m})
}

// patient lets connections that are being closed end: on a busy machine that takes
// longer than goleak waits. Those that are kept are closed too: pgx may have left a
// goroutine behind that reads from one until then.
type patient struct{ *testing.M }

func (p patient) Run() int {
	code := p.M.Run()
	closeIdle()
	for range 20 { // each look waits for a while
		if goleak.Find() == nil {
			break
		}
	}
	return code
}
