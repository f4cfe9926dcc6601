package ledger

import "time"

// GatherAfter is how long events gather behind a page of so many.
func GatherAfter(events int) time.Duration { return gatherAfter(events) }
