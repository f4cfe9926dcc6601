// Package doorbell says what a commit of payonce leaves to be done, for the outbox's doorbell.
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

// New makes the doorbell of a program. One that only rings does not listen.
func New(log *slog.Logger, listen bool) *outbox.Doorbell {
	return outbox.NewDoorbell(outbox.DoorbellOptions{Log: log, Channel: "payonce_due", Local: Ledger | Page, RingOnly: !listen})
}

// Committed returns what rings for what a commit leaves to be done.
func Committed(d *outbox.Doorbell) func(*pgx.Batch) {
	return func(b *pgx.Batch) { d.Ring(Of(b)) }
}

// Of returns what a batch leaves to be done once it is committed.
func Of(b *pgx.Batch) (kinds outbox.Kind) {
	if outbox.Appended(b) {
		kinds |= Outbox
	}
	if inbox.MadeDue(b) {
		kinds |= Inbox
	}
	if ledger.Appended(b) {
		kinds |= Ledger
	}
	return kinds
}
