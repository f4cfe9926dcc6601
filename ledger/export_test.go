package ledger

import (
	"context"
	"time"
)

// Looks is a projector's Run by hand: each call looks once, and returns the pause that
// Run would make behind it.
func Looks(p *Projector) func(context.Context) time.Duration { return (&turn{Projector: p}).take }
