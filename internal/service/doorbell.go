package service

import (
	"log/slog"
	"slices"

	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// Ledger is what events wake, in the process that commits them.
const Ledger = ledger.Woken

// NewBell makes the doorbell of a program.
func NewBell(log *slog.Logger) *outbox.Doorbell { return outbox.NewDoorbell("payonce_due", log) }

// Committed returns the Committed of groupcommit.Options that rings for what a commit leaves to be
// done: messages of a topic, messages of a receiver of the inbox, and events to follow. The program
// itself handles the messages of these receivers.
func Committed(d *outbox.Doorbell, handles ...string) func(names []string) {
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
