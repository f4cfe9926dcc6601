// Package doorbell says for what a committed batch rings the outbox's doorbell: the topics of its
// messages, the receivers of the inbox, and the ledger.
package doorbell

import (
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// Names that are rung for in one process alone.
const (
	Ledger = "ledger" // events were committed
	Page   = "page"   // a page of the console waits for what is new
)

// New makes the doorbell of a program.
func New(log *slog.Logger) *outbox.Doorbell { return outbox.NewDoorbell("payonce_due", log) }

// Committed returns what rings for what a commit leaves to be done. The program handles the
// messages of these receivers itself.
func Committed(d *outbox.Doorbell, handles ...string) func(*pgx.Batch) {
	return func(b *pgx.Batch) {
		for _, topic := range outbox.Topics(b) {
			d.Ring(topic)
		}
		for _, receiver := range inbox.Receivers(b) {
			if slices.Contains(handles, receiver) {
				d.Wake(receiver)
			} else {
				d.Ring(receiver)
			}
		}
		if ledger.HasEvents(b) {
			d.Wake(Ledger)
		}
	}
}
