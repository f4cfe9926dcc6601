package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const refusedRefund = "pm_card_refundFail" // captures; its refund fails

// TestRefund gives money back after the capture.
func TestRefund(t *testing.T) {
	t.Parallel()
	long(t)

	t.Run("money goes back", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, setup{apis: 2, workers: 2, told: true})
		for name, test := range map[string]func(*testing.T, *world){
			"in parts and then all that is left":                  inParts,
			"to one of ten who ask for 600 of 1000":               sixHundredOfAThousand,
			"once, however often it is asked for at once":         askedOften,
			"unless the card refuses it, and then may be retried": refusedByTheCard,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, w)
			})
		}
	})
	t.Run("faults of the provider double no refund", func(t *testing.T) {
		t.Parallel()
		refundsUnderFaults(t)
	})
	t.Run("a worker killed at any step of a refund is taken over", func(t *testing.T) {
		t.Parallel()
		refundKilledAtAnyStep(t)
	})
}

// refund is what the API shows.
type refund struct {
	ID       string `json:"id"`
	ChargeID string `json:"charge_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Status   string `json:"status"`
}

// refundRequest asks for a refund under a new key; of all that is left where
// amount is 0.
func refundRequest(chargeID string, amount int64) request {
	body := []byte(`{"reason":"returned"}`)
	if amount > 0 {
		body = fmt.Appendf(nil, `{"amount":%d}`, amount)
	}
	return request{path: "/v1/charges/" + chargeID + "/refunds", key: "key-" + unique(), body: body}
}

// refund asks for a refund, which must be accepted.
func (w *world) refund(t *testing.T, chargeID string, amount int64) refund {
	t.Helper()
	got, _, err := w.client.insist(t.Context(), refundRequest(chargeID, amount))
	if err != nil {
		t.Fatal(err)
	}
	return acceptedRefund(t, got)
}

func acceptedRefund(t *testing.T, got answer) refund {
	t.Helper()
	var r refund
	if err := json.Unmarshal(got.Body, &r); err != nil || got.Status != http.StatusAccepted || r.Status != "pending" {
		t.Fatalf("answered %d %s, want 202 and a pending refund", got.Status, got.Body)
	}
	if location := "/v1/charges/" + r.ChargeID + "/refunds/" + r.ID; got.Header.Get("Location") != location {
		t.Errorf("Location is %q, want %q", got.Header.Get("Location"), location)
	}
	return r
}

// settled waits until a refund has its outcome.
func (w *world) settled(t *testing.T, r refund) refund {
	t.Helper()
	got := r
	if !within(endPatience, func() bool {
		read, err := w.client.do(t.Context(), request{method: http.MethodGet, path: "/v1/charges/" + r.ChargeID + "/refunds/" + r.ID})
		return err == nil && read.Status == http.StatusOK && json.Unmarshal(read.Body, &got) == nil && got.Status != "pending"
	}) {
		t.Fatalf("refund %s of %s is not settled after %s: %s", r.ID, r.ChargeID, endPatience, w.messagesOf(t, r.ChargeID))
	}
	return got
}

// paid is a charge of 1000 that succeeded.
func (w *world) paid(t *testing.T, method string) charge {
	t.Helper()
	c := w.carry(t, newOrder(method))
	if c.Status != "succeeded" {
		t.Fatalf("the charge is %s", c.Status)
	}
	return c
}

func (w *world) mustBe(t *testing.T, chargeID, status string, refunded int64) {
	t.Helper()
	read, err := w.client.do(t.Context(), request{method: http.MethodGet, path: "/v1/charges/" + chargeID})
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Status         string `json:"status"`
		AmountRefunded int64  `json:"amount_refunded"`
	}
	if err := json.Unmarshal(read.Body, &c); err != nil || c.Status != status || c.AmountRefunded != refunded {
		t.Errorf("the charge is %s with %d refunded, want %s with %d", c.Status, c.AmountRefunded, status, refunded)
	}
}

func inParts(t *testing.T, w *world) {
	t.Helper()
	c := w.paid(t, visa)
	first := w.settled(t, w.refund(t, c.ID, 400))
	if diff := cmp.Diff(refund{ID: first.ID, ChargeID: c.ID, Amount: 400, Currency: "USD", Status: "succeeded"}, first); diff != "" {
		t.Errorf("refund (-want +got):\n%s", diff)
	}
	w.mustBe(t, c.ID, "partially_refunded", 400)
	over := refundRequest(c.ID, 601)
	for range 2 {
		got, err := w.client.do(t.Context(), over)
		if err != nil {
			t.Fatal(err)
		}
		mustBeProblem(t, got, http.StatusUnprocessableEntity, "refund-exceeds-captured")
	}
	rest := w.settled(t, w.refund(t, c.ID, 0))
	if rest.Amount != 600 || rest.Status != "succeeded" {
		t.Errorf("the rest is %+v", rest)
	}
	w.mustBe(t, c.ID, "refunded", 1000)
	got, err := w.client.do(t.Context(), refundRequest(c.ID, 0))
	if err != nil {
		t.Fatal(err)
	}
	mustBeProblem(t, got, http.StatusUnprocessableEntity, "refund-exceeds-captured")

	list, err := w.client.do(t.Context(), request{method: http.MethodGet, path: "/v1/charges/" + c.ID + "/refunds"})
	if err != nil {
		t.Fatal(err)
	}
	var page struct {
		Data []refund `json:"data"`
	}
	if err := json.Unmarshal(list.Body, &page); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]refund{first, rest}, page.Data); diff != "" {
		t.Errorf("refunds (-want +got):\n%s", diff)
	}
	const balances = `
select format('%s %s', account, sum(amount))
  from (
        select debit as account, amount
          from ledger_postings
         where stream_id = $1
         union all
        select credit, -amount
          from ledger_postings
         where stream_id = $1) legs
 group by account
having sum(amount) <> 0
 order by account`
	if diff := cmp.Diff([]string{"fee_revenue:payonce:USD -30", "merchant_payable:" + w.merchantOf(t, c.ID) + ":USD 30"}, rows[string](t, w, balances, c.ID)); diff != "" {
		t.Errorf("balances after all went back (-want +got):\n%s", diff)
	}
}

func sixHundredOfAThousand(t *testing.T, w *world) {
	t.Helper()
	c := w.paid(t, visa)
	statuses := map[int]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			got, _, err := w.client.insist(t.Context(), refundRequest(c.ID, 600))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[got.Status]++
		})
	}
	all.Wait()
	if diff := cmp.Diff(map[int]int{http.StatusAccepted: 1, http.StatusUnprocessableEntity: 9}, statuses); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}

func askedOften(t *testing.T, w *world) {
	t.Helper()
	c := w.paid(t, visa)
	r := refundRequest(c.ID, 250)
	bodies := map[string]int{}
	var mu sync.Mutex
	var all sync.WaitGroup
	n := 64
	for range n {
		all.Go(func() {
			got, _, err := w.client.insist(t.Context(), r)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			bodies[string(got.Body)]++
		})
	}
	all.Wait()
	if len(bodies) != 1 {
		t.Errorf("%d answers to one request: %v", len(bodies), bodies)
	}
	got, _, err := w.client.insist(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	w.settled(t, acceptedRefund(t, got))
	w.mustBe(t, c.ID, "partially_refunded", 250)
}

func refusedByTheCard(t *testing.T, w *world) {
	t.Helper()
	c := w.paid(t, refusedRefund)
	for range 2 {
		if got := w.settled(t, w.refund(t, c.ID, 1000)); got.Status != "failed" {
			t.Errorf("the refund is %s", got.Status)
		}
		w.mustBe(t, c.ID, "succeeded", 0)
	}
}

// refundsUnderFaults refunds many charges while the provider drops, breaks and
// slows what it gets. The judge compares each refund with the books.
func refundsUnderFaults(t *testing.T) {
	t.Helper()
	w := newWorld(t, setup{apis: 1, workers: 2, told: true})
	n := 30
	charges := make([]charge, n)
	for i := range charges {
		charges[i] = w.send(t, newOrder([]string{visa, visa, refusedRefund}[i%3]))
	}
	for i := range charges {
		charges[i] = w.await(t, charges[i].ID)
	}
	w.breakOutside(t, faults{Seed: 7, DropBefore: 0.15, DropAfter: 0.25, Error500: 0.2, Slow: slow{P: 0.2, MS: 50}})
	var asked []refund
	for i, c := range charges {
		for _, amount := range [][]int64{{1000}, {300, 200}, {0}}[i%3] {
			asked = append(asked, w.refund(t, c.ID, amount))
		}
	}
	ends := map[string]int{}
	for _, r := range asked {
		ends[w.settled(t, r).Status]++
	}
	if ends["failed"] != n/3 || ends["succeeded"] != len(asked)-n/3 {
		t.Errorf("of %d refunds %v", len(asked), ends)
	}
	const retried = `
select count(*)
  from inbox
 where type = 'refund.requested.v1'
   and (attempts > 1 or waits > 0)`
	if row[int64](t, w, retried) == 0 {
		t.Error("the faults hit no refund: they showed nothing")
	}
}

// refundKilledAtAnyStep kills the worker at each request that a refund makes of
// the outside, before and after it. Whoever takes over asks the provider for its
// list before it sends anything.
func refundKilledAtAnyStep(t *testing.T) {
	t.Helper()
	w := newWorld(t, setup{apis: 1, workers: 2, gated: true})
	stop(t, w.workers[1])
	const create, list = "POST /v1/refunds", "GET /v1/refunds"
	calls := []string{list, create, "webhook"}

	c := w.paid(t, visa)
	w.gates.open()
	w.settled(t, w.refund(t, c.ID, 100))
	eventually(t, "the merchant is told", func() bool { return slices.Contains(w.gates.forwarded(), "webhook") })
	if diff := cmp.Diff(calls, w.gates.forwarded()); diff != "" {
		t.Fatalf("the walk is planned for other requests (-) than there are (+):\n%s", diff)
	}
	alive, runs := 0, 0
	for _, call := range calls {
		for _, side := range []side{before, after} {
			point, id := passage{call: call, side: side}, w.paid(t, visa).ID
			victim := w.workers[alive]
			died := make(chan error, 1)
			planned := make(chan struct{}, 1)
			planned <- struct{}{}
			w.gates.set(func(p passage) bool {
				if p.call != point.call || p.side != point.side {
					return true
				}
				select {
				case <-planned:
					died <- victim.Kill()
					return false
				default:
					return true
				}
			})
			asked := w.refund(t, id, 400)
			if err := next(t, "the worker comes to the point where it dies", died); err != nil {
				t.Fatal(err)
			}
			alive = 1 - alive
			restart(t, w.workers[alive])
			if got := w.settled(t, asked); got.Status != "succeeded" {
				t.Errorf("killed %s %s: the refund is %s", side, call, got.Status)
			}
			w.mustBe(t, id, "partially_refunded", 400)
			forwarded := w.gates.forwarded()
			if n := count(forwarded, create); n != 1 {
				t.Errorf("killed %s %s: the provider was asked %d times for the refund: %q", side, call, n, forwarded)
			}
			if looks := count(forwarded, list); call != "webhook" && looks < 2 && side == after {
				t.Errorf("killed %s %s: the new holder did not look for it: %q", side, call, forwarded)
			}
			if slices.Index(forwarded, list) > slices.Index(forwarded, create) {
				t.Errorf("killed %s %s: the provider was asked for it before its list: %q", side, call, forwarded)
			}
			runs++
		}
	}
	w.calm(t) // while the gates still stand
	t.Logf("a worker died at %d of %d points", runs, 2*len(calls))
}

func count(calls []string, call string) int {
	n := 0
	for _, c := range calls {
		if c == call {
			n++
		}
	}
	return n
}
