package main

import (
	"context"
	"strings"
	"time"
)

// subject is one thing that is measured.
type subject struct {
	name  string // group/who
	what  string
	rival string  // the subject that it is compared with, "" for none
	fixed setting // what the options do not change
	run   func(context.Context, *bench, setting) (Sample, error)
}

// based says whether another commit's programs can be measured too.
func (s subject) based() bool {
	return strings.Contains(s.name, "/payonce") && s.name != "receive/payonce" && s.name != "engine/payonce"
}

// subjects are measured in this order.
var subjects = []subject{
	{"accept/payonce", "POST /v1/charges, 64 connections, distinct keys", "", setting{InFlight: httpConnections}, acceptCharges.measure},
	{"replay/payonce", "the same requests once more, answered from the keys", "accept/payonce", setting{InFlight: httpConnections}, replayCharges.measure},
	{"receive/payonce", "messages from outbox to inbox by Watermill", "", setting{}, receiveMessages},
	{"engine/payonce", "accept in process, outbox, Watermill, inbox, three small steps with one loopback POST", "engine/river-64", setting{}, engine("payonce", 0)},
	{"engine/river-64", "the same work as River jobs, cooldown 2 ms, 64 workers", "", setting{}, engine("river", 64)},
	{"engine/river-256", "the same work as River jobs, cooldown 2 ms, 256 workers", "engine/river-64", setting{}, engine("river", 256)},
	{"engine/watermill", "the same work in a plain handler of watermill-sql's subscriber", "engine/river-64", setting{}, engine("watermill", 1)},
	{"engine/watermill-16", "the same with 16 topics, a subscriber each", "engine/river-64", setting{}, engine("watermill", 16)},
	{"engine/naive", "the same work inside the receiver's transaction, as articles show it: a crash repeats the POST", "engine/river-64", setting{}, engine("naive", 64)},
	{"charges/payonce", "accept over HTTP, stock, payment by stripe-go, signed webhook, while accepting", "charges/river-64", setting{}, processCharges.measure},
	{"charges/payonce-64", "the same with WORKER_CONCURRENCY=64", "charges/river-64", setting{Slots: 64}, processCharges.measure},
	{"charges/river-64", "the same charges, events, postings, provider calls and webhooks as River jobs, 64 workers", "", setting{Slots: 64}, processByRiver.measure},
	{"charges/river-256", "the same, 256 workers", "charges/river-64", setting{Slots: 256}, processByRiver.measure},
	{"few/payonce", "charges by payonce with 64 in flight instead of 256", "few/river-64", setting{InFlight: 64}, processCharges.measure},
	{"few/river-64", "charges by River with 64 in flight, 64 workers", "", setting{InFlight: 64, Slots: 64}, processByRiver.measure},
	{"idle/payonce", "one charge at a time through the idle system, request to webhook", "idle/river-64", setting{InFlight: 1}, processCharges.measure},
	{"idle/river-64", "the same as River jobs", "", setting{InFlight: 1, Slots: 64}, processByRiver.measure},
	{"backlog/payonce", "charges that were accepted while no worker ran", "charges/payonce", setting{}, processBacklog.measure},
	{"retention/without", "accepting beside rows that have expired", "", setting{InFlight: retentionSenders}, besideExpired.measure},
	{"retention/job", "the same while the retention job deletes them", "retention/without", setting{InFlight: retentionSenders}, besideRetention.measure},
}

// sizes are how much is measured.
type sizes struct {
	warm     time.Duration
	measured time.Duration
	unit     time.Duration // of pgbench, each time; 0: it is not measured
	messages int           // to receive
	replayed int           // charges whose responses are asked for again
	waiting  int           // charges that wait for a worker
	expired  int           // charges whose rows have expired
}

func full(measured time.Duration) sizes {
	return sizes{
		warm: max(2*time.Second, measured/5), measured: measured, unit: 2 * time.Second,
		messages: 30_000, replayed: 2_000, waiting: 5_000, expired: 20_000,
	}
}

// quick sizes are for checking that everything is done once.
var quick = sizes{
	measured: 400 * time.Millisecond,
	messages: 500, replayed: 100, waiting: 40, expired: 50,
}
