package intake_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testdb"
)

// TestAcceptCharge_onceForEachOrder: whatever its keys are, an order of an account with
// OneChargePerOrder has one charge until that fails.
func TestAcceptCharge_onceForEachOrder(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	in, account := keeping(t, db), acme()
	account.OneChargePerOrder = true
	const keys = 6
	ask := func(n int) idempotency.Result {
		answer, err := in.AcceptCharge(t.Context(), account, request("k"+strconv.Itoa(n)), mug())
		if err != nil {
			t.Error(err)
		}
		return answer
	}
	// rivals ask twice under each key, all at the same moment. One of the keys gets the charge, also
	// where its other request has accepted that a moment before; the other keys get the refusal.
	rivals := func(from int) (id string) {
		answers := make([]idempotency.Result, 2*keys)
		var asking sync.WaitGroup
		for n := range answers {
			asking.Go(func() { answers[n] = ask(from + n%keys) })
		}
		asking.Wait()
		accepted := 0
		for n, a := range answers {
			if first := answers[n%keys]; string(a.Body) != string(first.Body) {
				t.Errorf("key %d has two answers: %s and %s", n%keys, first.Body, a.Body)
			}
			if a.StatusCode == http.StatusAccepted {
				accepted, id = accepted+1, strings.TrimPrefix(a.Header.Get("Location"), "/v1/charges/")
			}
		}
		if accepted != 2 {
			t.Fatalf("%d answers accept a charge, want the two of one key", accepted)
		}
		for _, a := range answers {
			if a.StatusCode == http.StatusConflict && string(a.Body) != id {
				t.Errorf("the refusal names %s, want %s", a.Body, id)
			}
		}
		return id
	}
	failed := rivals(0)
	record(t, db, failed, func(c domain.Charge) []domain.Event { return c.RejectInventory(domain.OutOfStock) })
	succeeded := rivals(100)
	if again := ask(0); !again.Replayed {
		t.Errorf("the first key has another answer after its charge failed: %s", again.Body)
	}
	capture(t, db, succeeded)
	record(t, db, succeeded,
		func(domain.Charge) []domain.Event {
			return []domain.Event{domain.RefundRequested{RefundID: "re_1", Amount: 1000}}
		},
		func(c domain.Charge) []domain.Event { return c.Refunds[0].Resolve("re_x", false, "") })
	if late := ask(200); string(late.Body) != succeeded {
		t.Errorf("a refunded charge has lost its order: %s", late.Body)
	}
	if other, err := in.AcceptCharge(t.Context(), acme(), request("other"), mug()); err != nil || other.StatusCode != http.StatusAccepted {
		t.Errorf("an account without the wish: %d, %v", other.StatusCode, err)
	}
}
