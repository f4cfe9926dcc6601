package service

import (
	"log/slog"
	"slices"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
	"github.com/payonce/payonce/outbox/doorbell"
)

// Ledger is what events wake, in the process that commits them.
const Ledger = ledger.Woken

// NewBell makes the doorbell of a program.
func NewBell(log *slog.Logger) *doorbell.Doorbell { return doorbell.New("payonce_due", log) }

// Committed returns the Committed of groupcommit.Options that rings for what a commit leaves to be
// done: messages of a topic, messages of a receiver of the inbox, and events to follow. The program
// itself handles the messages of these receivers.
func Committed(d *doorbell.Doorbell, handles ...string) func(names []string) {
	return func(names []string) {
		for _, name := range names {
			if name == Ledger || slices.Contains(handles, name) {
				d.Wake(name)
			} else {
				d.Ring(name)
			}
		}
	}
}

// Statements is the statements of a program that may share a commit, and so the order in which they lock rows:
//
//	inserts: idempotency_keys, ledger_events, ledger_postings, outbox,  in the order of the list
//	reservations, inbox, with the heads that a message nudges
//	held_orders                                                         by merchant and order
//	reservations                                                        by charge
//	stock                                                               by merchant and SKU
//	inbox: ends                                                         by number of the message
//	inbox: promotions                                                   by receiver and ordering key
//
// Others lock several of these rows too: a page of the inbox, by key and then by number; a takeover, which skips
// locked rows; the repair of keys, which waits a millisecond for a lock. A batch with any other statement commits
// in a transaction of its own:
//
//	write                               reason
//	a page of the inbox, an event of    it reads the rows that it has locked, and its
//	the provider, a claim               outcome is read from rows
//	renewal of leases                   it must not wait for the locks of others
//	an operator's commands, repair      rare, and they lock what others work on
//	merchants, API keys, secrets        rare
//	the sums of balances                thousands of rows, by one program at a time
//	retention                           no caller waits for it
func Statements(worker ...groupcommit.Statement) *groupcommit.Statements {
	return groupcommit.NewStatements(slices.Concat(idempotency.Writes(), ledger.Writes(), outbox.Writes(), worker)...)
}
