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
)

// Use is what a program does with its doorbell.
type Use int

// The uses.
const (
	Rings Use = iota // it receives from no other process
	Leads            // it receives from them, and may be the leader
)

// New makes the doorbell of a program.
func New(log *slog.Logger, use Use) *outbox.Doorbell {
	return outbox.NewDoorbell(outbox.DoorbellOptions{
		Log: log, Channel: "payonce_due", Local: Ledger, RingOnly: use == Rings,
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
