package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/payonce/payonce/domain"
)

func TestAmounts_areRefusedWhereTheProviderCannotMoveThem(t *testing.T) {
	t.Parallel()
	w := serve(t)
	for code, amounts := range map[string][2]string{ // refused, accepted
		"BHD": {"1005", "1010"}, "JOD": {"1", "10"}, "KWD": {"5124", "5120"}, "OMR": {"1009", "1000"}, "TND": {"1001", "1100"},
		"MGA": {"1010", "1100"}, "ISK": {"", "1"}, "UGX": {"", "1"}, "HUF": {"", "1001"}, "TWD": {"", "1001"}, "IQD": {"", "1001"},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			if amounts[0] != "" {
				a := w.send(t, post("charge-"+code, body("amount", amounts[0], "currency", `"`+code+`"`)))
				wantPointers(t, wantProblem(t, a, "/problems/validation"), "/amount")
			}
			w.accept(t, "charge-"+code, body("amount", amounts[1], "currency", `"`+code+`"`))
		})
	}
}

func TestRefunds_ofAmountsThatTheProviderCannotMoveAreRefusedAndUseNoKey(t *testing.T) {
	t.Parallel()
	w := serve(t)
	charge := w.accept(t, "charge", body("amount", "2000", "currency", `"KWD"`)).header.Get("Location")
	w.happen(t, charge,
		domain.StartPayment{Provider: domain.Provider, PaymentIntent: "pi_1"},
		domain.CapturePayment{Provider: domain.Provider, PaymentIntent: "pi_1", Amount: domain.Money{Amount: 2000, Currency: "KWD"}},
	)
	a := w.send(t, to(charge+"/refunds", "refund", `{"amount":1005}`))
	wantPointers(t, wantProblem(t, a, "/problems/validation"), "/amount")
	for key, refund := range map[string]string{"refund": `{"amount":1000}`, "rest": `{"amount":1000}`} {
		if a := w.send(t, to(charge+"/refunds", key, refund)); a.status != http.StatusAccepted {
			t.Errorf("%s is answered %d: %s", refund, a.status, a.body)
		}
	}
}
