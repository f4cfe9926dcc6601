package fulfillment_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/fulfillment"
)

// TestSteppingIsToldOfStepsThatDidSomething: a step that found its work done
// takes no time worth knowing.
func TestSteppingIsToldOfStepsThatDidSomething(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.provider.behind = newSandbox(t)
	var mu sync.Mutex
	var stepped []string
	f := &fulfillment.Fulfillment{
		DB: w.db, Provider: w.client, Log: slog.New(slog.DiscardHandler),
		Stepping: func(ctx context.Context, step string) (context.Context, func(bool, error)) {
			if !slices.Contains(fulfillment.Steps(), step) {
				t.Errorf("%s is no step", step)
			}
			return ctx, func(did bool, err error) {
				mu.Lock()
				defer mu.Unlock()
				if did && err == nil {
					stepped = append(stepped, step)
				}
			}
		},
	}
	w.charge = f.Charge
	w.accept("ch_1", order())
	if err := w.deliver(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"inventory", "payment", "payment"}, stepped); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}
