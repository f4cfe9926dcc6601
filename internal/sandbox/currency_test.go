package sandbox_test

import (
	"net/http"
	"testing"

	"github.com/payonce/payonce/internal/sandbox"
)

func TestAmounts_endInTheZerosThatStripeWants(t *testing.T) {
	t.Parallel()
	w := start(t, sandbox.Options{})
	for code, amounts := range map[string][2]string{"isk": {"550", "500"}, "UGX": {"10", "100"}, "KWD": {"5124", "5120"}} {
		w.post("/v1/payment_intents", "", "amount", amounts[0], "currency", code).
			want(t, http.StatusBadRequest, map[string]any{"error.type": "invalid_request_error", "error.param": "amount"})
		w.post("/v1/payment_intents", "", "amount", amounts[1], "currency", code).want(t, http.StatusOK, nil)
	}
}
