package defects_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(patient{m}) }

// patient lets connections that are being closed end: on a busy machine that takes
// longer than goleak waits.
type patient struct{ *testing.M }

func (p patient) Run() int {
	code := p.M.Run()
	for range 20 { // each look waits for a while
		if goleak.Find() == nil {
			break
		}
	}
	return code
}
