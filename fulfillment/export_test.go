package fulfillment

import (
	"context"
	"log/slog"
	"slices"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

// Store is what handlers without a database commit to and read from.
type Store interface {
	groupcommit.DB
	Load(ctx context.Context, id string) (ledger.Stream, error)
	Endpoint(ctx context.Context, merchant string) (merchants.Endpoint, error)
	Available(sku string) (left int64, known bool)
}

// NewOn returns handlers on a store.
func NewOn(store Store, services Services, log *slog.Logger) *Fulfillment {
	stock := func(_ context.Context, asked [][]article) ([]map[article]int64, error) {
		available := map[article]int64{}
		for _, a := range slices.Concat(asked...) {
			if left, known := store.Available(a.sku); known {
				available[a] = left
			}
		}
		return slices.Repeat([]map[article]int64{available}, len(asked)), nil
	}
	return &Fulfillment{
		db: store, services: services, log: log,
		streams: store.Load, endpoints: store.Endpoint, stock: postgres.NewReads(1, stock),
	}
}

// StepNames are the names of the steps that run.
func StepNames() (names []string) {
	for _, s := range (&Fulfillment{}).steps(nil) {
		names = append(names, s.name)
	}
	return names
}

// ProcessingWait is the wait for what the provider is processing.
var ProcessingWait = processingWait
