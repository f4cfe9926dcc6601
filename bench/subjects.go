package main

import (
	"context"
	"time"
)

// subject is one thing that is measured.
type subject struct {
	name  string // group/who
	what  string
	rival string // the subject that it is compared with, "" for none
	run   func(context.Context, *stage) (Sample, error)
}

// inFlight is how many charges are under way at a time where that is not said
// otherwise: accepted, and not yet at their end.
const inFlight = 256

// subjects are measured in this order.
func subjects() []subject {
	return []subject{
		{"accept/payonce", "POST /v1/charges, 64 connections, distinct keys", "", acceptOverHTTP},
		{"replay/payonce", "the same requests once more, answered from the keys", "accept/payonce", replayOverHTTP},
		{"receive/payonce", "messages from outbox to inbox by Watermill", "", receive},
		{"engine/payonce", "accept in process, outbox, Watermill, inbox, three small steps with one loopback POST", "engine/river-64", engine("payonce", 0)},
		{"engine/river-64", "the same work as River jobs, cooldown 2 ms, 64 workers", "", engine("river", 64)},
		{"engine/river-256", "the same work as River jobs, cooldown 2 ms, 256 workers", "engine/river-64", engine("river", 256)},
		{"engine/watermill", "the same work in a plain handler of watermill-sql's subscriber", "engine/river-64", engine("watermill", 1)},
		{"engine/watermill-16", "the same with 16 topics, a subscriber each", "engine/river-64", engine("watermill", 16)},
		{"engine/naive", "the same work inside the receiver's transaction, as articles show it: a crash repeats the POST", "engine/river-64", engine("naive", 64)},
		{"charges/payonce", "accept over HTTP, stock, payment by stripe-go, signed webhook, while accepting", "charges/river-64", chargesByPayonce(inFlight, 0)},
		{"charges/payonce-256", "the same with WORKER_CONCURRENCY=256 instead of 64", "charges/river-64", chargesByPayonce(inFlight, inFlight)},
		{"charges/river-64", "the same charges, events, postings, provider calls and webhooks as River jobs, 64 workers", "", chargesByRiver(64)},
		{"charges/river-256", "the same, 256 workers", "charges/river-64", chargesByRiver(256)},
		{"few/payonce", "the same by payonce with 64 under way instead of 256", "charges/payonce", chargesByPayonce(64, 0)},
		{"idle/payonce", "one charge at a time through the idle system, accept to webhook", "idle/river-64", idlePayonce},
		{"idle/river-64", "the same as River jobs", "", idleRiver},
		{"backlog/payonce", "charges that were accepted while no worker ran", "charges/payonce", backlog},
	}
}

// sizes are how much is measured.
type sizes struct {
	warm     time.Duration
	measured time.Duration
	unit     time.Duration // of pgbench, each time
	messages int           // to receive
	idle     int           // charges, one at a time
	backlog  int           // charges
}

func full(measured time.Duration) sizes {
	return sizes{
		warm: max(2*time.Second, measured/5), measured: measured, unit: 2 * time.Second,
		messages: 30_000, idle: 200, backlog: 5_000,
	}
}

// quick sizes are for checking that everything is done once.
func quick() sizes {
	return sizes{
		warm: 0, measured: 400 * time.Millisecond, unit: 0,
		messages: 500, idle: 5, backlog: 100,
	}
}
