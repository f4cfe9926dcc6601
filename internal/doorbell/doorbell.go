// Package doorbell decides which kinds of the outbox's doorbell a committed batch rings.
package doorbell

import (
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// The kinds of work.
const (
	Outbox = outbox.KindMessages // a message was committed to the outbox
	Inbox  = Outbox << 1         // a message of the inbox became due
	Ledger = Inbox << 1          // events were committed; it goes to no other process
	Page   = Ledger << 1         // a page of the console waits for what is new; it goes to no other process
)

// Use is what a program does with its doorbell.
type Use int

// The uses.
const (
	Rings   Use = iota // it receives from no other process
	Listens            // it receives from them, and its bells wake nothing that has to run
	Leads              // it may be the leader too
)

// New makes the doorbell of a program.
func New(log *slog.Logger, use Use) *outbox.Doorbell {
	return outbox.NewDoorbell(outbox.DoorbellOptions{
		Log: log, Channel: "payonce_due", Local: Ledger | Page, RingOnly: use == Rings, NeverLeader: use == Listens,
	})
}

// Committed returns what rings for what a commit leaves to be done.
func Committed(d *outbox.Doorbell) func(*pgx.Batch) {
	return func(b *pgx.Batch) { d.Ring(Of(b)) }
}

// Of returns what a batch leaves to be done once it is committed.
func Of(b *pgx.Batch) (kinds outbox.Kind) {
	if outbox.HasMessages(b) {
		kinds |= Outbox
	}
	if inbox.MakesMessagesDue(b) {
		kinds |= Inbox
	}
	if ledger.HasEvents(b) {
		kinds |= Ledger
	}
	return kinds
}
