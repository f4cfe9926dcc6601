package worker

import (
	"time"

	"github.com/payonce/payonce/inbox"
)

// Routing reads what a receiver takes.
var Routing = routing

// TopicOf is the topic of a receiver.
var TopicOf = topicOf

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
