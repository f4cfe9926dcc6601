package worker

import (
	"time"

	"github.com/payonce/payonce/inbox"
)

// Route is what tests ask who takes a message.
var Route = route //nolint:gochecknoglobals // exported to tests only

// Routing is Route that says which messages nobody takes.
var Routing = routing //nolint:gochecknoglobals // exported to tests only

// HandingOver lets messages be handed to processors, as Run does.
var HandingOver = handingOver //nolint:gochecknoglobals // exported to tests only

// Together is how many messages of a worker with so many places gather for a commit.
func Together(places int) int { return Settings{WorkerConcurrency: places}.together() }

// Processors are those of a worker that has nothing to work with.
func Processors() []*inbox.Processor {
	return processors(nil, nil, nil, nil, nil, Settings{}, time.Now)
}

// Parked tells what each receiver does behind a parked message.
func Parked() map[string]inbox.Parked {
	policies := map[string]inbox.Parked{}
	for _, p := range Processors() {
		policies[p.Receiver] = p.Policy.Parked
	}
	return policies
}
