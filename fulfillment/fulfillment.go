package fulfillment

import (
	"context"
	"log/slog"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// The receivers of charges and refunds, of webhooks, and of webhooks that are sent again on
// request.
const (
	ChargeReceiver       = "fulfillment"
	NotificationReceiver = domain.Notification
	ResendReceiver       = "resend"
)

// Fulfillment handles the messages of Receivers.
type Fulfillment struct {
	db       groupcommit.DB
	services Services
	log      *slog.Logger

	// Reads that several handlers ask for at the same moment share a round trip
	// (postgres.Reads); nothing is cached.
	streams   func(ctx context.Context, chargeID string) (ledger.Stream, error)
	endpoints func(ctx context.Context, merchant string) (merchants.Endpoint, error)
	stock     *postgres.Reads[[]article, map[article]int64]
}

// maxReadsInFlight bounds how many reads of one kind are in flight, so that slow reads leave
// connections to the commits.
const maxReadsInFlight = 4

// New returns the handlers of one process.
func New(db *postgres.DB, services Services, log *slog.Logger) *Fulfillment {
	return &Fulfillment{
		db: db, services: services, log: log,
		streams: ledger.NewLoader(db, maxReadsInFlight), endpoints: merchants.NewEndpoints(db, maxReadsInFlight), stock: newStock(db),
	}
}
