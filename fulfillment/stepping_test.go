package fulfillment_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
)

// TestOnStep_reportsStepsThatHadWork: a step that found its work done
// takes no time worth knowing.
func TestOnStep_reportsStepsThatHadWork(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := newWorld(t)
	w.provider.behind = newSandbox(t)
	var mu sync.Mutex
	var stepped []string
	f := fulfillment.New(w.db, fulfillment.Services{Provider: w.client}, slog.New(slog.DiscardHandler))
	f.OnStep = func(ctx context.Context, step string) (context.Context, func(bool, error)) {
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
	}
	w.charge = handlerFor(f, fulfillment.ChargeReceiver)
	w.accept("ch_1", order())
	if err := w.deliver(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"inventory", "payment", "payment"}, stepped); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// TestOnStep_reportsAStepThatPanics: what was begun is ended.
func TestOnStep_reportsAStepThatPanics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	told := map[string]error{}
	f := fulfillment.New(w.db, fulfillment.Services{}, slog.New(slog.DiscardHandler)) // without a provider, which nobody can ask
	f.OnStep = func(ctx context.Context, step string) (context.Context, func(bool, error)) {
		return ctx, func(did bool, err error) {
			if did {
				told[step] = err
			}
		}
	}
	w.charge = func(ctx context.Context, d inbox.Delivery) (_ inbox.Result, err error) {
		defer func() {
			if cause := recover(); cause != nil {
				err = fmt.Errorf("panic: %v", cause)
			}
		}()
		return handlerFor(f, fulfillment.ChargeReceiver)(ctx, d)
	}
	w.accept("ch_1", order())
	if err := w.deliver(); err == nil || !strings.HasPrefix(err.Error(), "panic: ") {
		t.Fatalf("delivered with %v", err)
	}
	if inventory, ok := told["inventory"]; !ok || inventory != nil || told["payment"] == nil {
		t.Errorf("told %v", told)
	}
}
