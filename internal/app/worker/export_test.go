package worker

import (
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
)

// Routing reads what a receiver takes.
var Routing = routing

// Receivers are those of a worker that has nothing to work with.
func Receivers() []fulfillment.Receiver { return (&fulfillment.Fulfillment{}).Receivers() }

// Parked tells what each receiver does behind a parked message.
func Parked() map[string]inbox.Parked {
	policies := map[string]inbox.Parked{}
	for _, r := range processors(nil, nil, fulfillment.Services{}, nil, nil, Settings{}) {
		policies[r.Name] = r.processor.Policy.Parked
	}
	return policies
}
