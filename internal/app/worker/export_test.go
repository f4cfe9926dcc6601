package worker

import (
	"time"

	"github.com/payonce/payonce/inbox"
)

// Route is what tests ask who takes a message.
var Route = route //nolint:gochecknoglobals // exported to tests only

// Parked tells what each receiver does behind a parked message.
func Parked() map[string]inbox.Parked {
	policies := map[string]inbox.Parked{}
	for _, p := range processors(nil, nil, nil, nil, nil, Settings{}, time.Now) {
		policies[p.Receiver] = p.Policy.Parked
	}
	return policies
}
