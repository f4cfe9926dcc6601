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
	based bool   // it can be measured with the programs of another work tree
	fixed setting
	run   func(context.Context, *stage, setting) (Sample, error)
}

// subjects are measured in this order.
func subjects() []subject {
	return []subject{
		{"accept/payonce", "POST /v1/charges, 64 connections, distinct keys", "", true, setting{}, acceptOverHTTP},
		{"replay/payonce", "the same requests once more, answered from the keys", "accept/payonce", true, setting{}, replayOverHTTP},
		{"receive/payonce", "messages from outbox to inbox by Watermill", "", true, setting{}, receive},
		{"claims/payonce", "messages claimed from the inbox, after many others", "", false, setting{}, claims(false)},
		{"claims/held", "the same while an idle transaction holds a snapshot", "claims/payonce", false, setting{}, claims(true)},
		{"engine/payonce", "accept in process, outbox, Watermill, inbox, three small steps with one loopback POST", "engine/river-64", true, setting{}, engine("payonce", 0)},
		{"engine/river-64", "the same work as River jobs, cooldown 2 ms, 64 workers", "", false, setting{}, engine("river", 64)},
		{"engine/river-256", "the same work as River jobs, cooldown 2 ms, 256 workers", "engine/river-64", false, setting{}, engine("river", 256)},
		{"engine/watermill", "the same work in a plain handler of watermill-sql's subscriber", "engine/river-64", false, setting{}, engine("watermill", 1)},
		{"engine/watermill-16", "the same with 16 topics, a subscriber each", "engine/river-64", false, setting{}, engine("watermill", 16)},
		{"engine/naive", "the same work inside the receiver's transaction, as articles show it: a crash repeats the POST", "engine/river-64", false, setting{}, engine("naive", 64)},
		{"charges/payonce", "accept over HTTP, stock, payment by stripe-go, signed webhook, while accepting", "charges/river-64", true, setting{}, chargesByPayonce},
		{"charges/payonce-64", "the same with WORKER_CONCURRENCY=64", "charges/river-64", true, setting{Slots: 64}, chargesByPayonce},
		{"charges/river-64", "the same charges, events, postings, provider calls and webhooks as River jobs, 64 workers", "", false, setting{}, chargesByRiver(64)},
		{"charges/river-256", "the same, 256 workers", "charges/river-64", false, setting{}, chargesByRiver(256)},
		{"few/payonce", "the same by payonce with 64 in flight instead of 256", "few/river-64", true, setting{InFlight: 64}, chargesByPayonce},
		{"few/river-64", "the same by River with 64 in flight", "", false, setting{InFlight: 64}, chargesByRiver(64)},
		{"idle/payonce", "one charge at a time through the idle system, accept to outcome", "idle/river-64", true, setting{InFlight: 1}, idlePayonce},
		{"idle/river-64", "the same as River jobs", "", false, setting{InFlight: 1}, idleRiver},
		{"rest/payonce", "one second of a worker that has nothing to do", "", true, setting{}, atRest},
		{"backlog/payonce", "charges that were accepted while no worker ran", "charges/payonce", true, setting{}, backlog},
	}
}

// sizes are how much is measured.
type sizes struct {
	warm     time.Duration
	measured time.Duration
	unit     time.Duration // of pgbench, each time
	rest     time.Duration // of a worker that has nothing to do
	messages int           // to receive
	claims   int           // to claim in one wave
	idle     int           // charges, one at a time
	backlog  int           // charges
}

func full(measured time.Duration) sizes {
	return sizes{
		warm: max(2*time.Second, measured/5), measured: measured, unit: 2 * time.Second, rest: 20 * time.Second,
		messages: 30_000, claims: 10_000, idle: 200, backlog: 5_000,
	}
}

// quick sizes are for checking that everything is done once.
func quick() sizes {
	return sizes{
		warm: 0, measured: 400 * time.Millisecond, unit: 0, rest: 100 * time.Millisecond,
		messages: 500, claims: 50, idle: 5, backlog: 100,
	}
}
