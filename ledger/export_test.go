package ledger

import (
	"context"
	"time"
)

// Steps returns the steps of a projector's Run: each call is one, and returns the pause
// after it.
func Steps(p *Projector) func(context.Context) time.Duration {
	return (&projecting{Projector: p}).step
}
