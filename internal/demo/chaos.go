package demo

import (
	"math/rand/v2"
	"time"
)

// Strike is something that goes wrong at a time, counted from the beginning.
type Strike struct {
	At    time.Duration
	Kind  StrikeKind
	Which int // of the programs
}

// StrikeKind is what goes wrong.
type StrikeKind string

// The strikes. The provider's faults are no strike: they are on all the time.
const (
	KillWorker      StrikeKind = "kill worker"
	KillAPI         StrikeKind = "kill api"
	RestartDatabase StrikeKind = "restart database"
)

// newStrikes spreads the strikes over the length: a kill of a worker about every
// second and, between them, one of an api and a restart of the database.
func newStrikes(r *rand.Rand, length time.Duration) []Strike {
	const rest = 1200 * time.Millisecond
	n := int(length / rest)
	strikes := make([]Strike, 0, n+3)
	for i := range n {
		at := rest*time.Duration(i) + rest/4 + time.Duration(r.Int64N(int64(rest/2)))
		strikes = append(strikes, Strike{at, KillWorker, r.IntN(2)})
		extra := map[int]StrikeKind{n / 3: KillAPI, 2 * n / 3: RestartDatabase}
		if kind, due := extra[i]; due {
			strikes = append(strikes, Strike{at, kind, r.IntN(2)})
		}
	}
	return strikes
}
