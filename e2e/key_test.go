package e2e_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// White space, the order of members, escapes, absent and empty members and the
// quotes of a key do not change a request.
func sameRequestWrittenOtherwise(t *testing.T, d *deployment) {
	t.Helper()
	key, id := "key-"+unique(), unique()
	var ids []string
	for _, r := range []request{
		{key: key, body: fmt.Appendf(nil, `{"order_id":"A-%s","amount":500,"currency":"EUR","payment_method":"pm_card_visa"}`, id)},
		{key: key, body: fmt.Appendf(nil, ` { "payment_method" : "pm_card_visa", "amount":500, "currency":"EUR", "order_id":"A-%s" } `, id)},
		{key: key, body: fmt.Appendf(nil, `{"order_id":"\u0041-%s","amount":500,"currency":"EUR","payment_method":"pm_card_visa"}`, id)},
		{key: key, body: fmt.Appendf(nil, `{"order_id":"A-%s","amount":500,"currency":"EUR","payment_method":"pm_card_visa","items":[],"metadata":{},"description":null}`, id)},
		{key: key, body: fmt.Appendf(nil, `{"order_id":"A-%s","amount":500,"currency":"EUR","payment_method":"pm_card_visa"}`, id), header: http.Header{"Idempotency-Key": {`"` + key + `"`}}},
	} {
		got := d.insist(t, r)
		ids = append(ids, acceptedCharge(t, got).ID)
	}
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("one request, written otherwise, became the charges %q", ids)
		}
	}
}

func sameKeyOtherBody(t *testing.T, d *deployment) {
	t.Helper()
	key, o := "key-"+unique(), newOrder(visa)
	first := d.insist(t, request{key: key, body: o.body(t)})
	acceptedCharge(t, first)
	other := o
	other.Amount++
	for range 2 {
		got := d.do(t, request{key: key, body: other.body(t)})
		if p := mustBeProblem(t, got, http.StatusUnprocessableEntity, "idempotency-key-reused"); p.RetryWith != "new-key" || p.Retryable {
			t.Errorf("it may be sent again: %s", got.Body)
		}
		if bytes.Contains(got.Body, []byte("1001")) || bytes.Contains(got.Body, []byte(o.OrderID)) {
			t.Errorf("the refusal shows values: %s", got.Body)
		}
	}
	if _, _, err := d.client.insist(t.Context(), request{key: key, body: o.body(t)}); err != nil {
		t.Errorf("the first request no longer has its answer: %v", err)
	}
}

func replayAfterTheEnd(t *testing.T, d *deployment) {
	t.Helper()
	r := request{key: "key-" + unique(), body: newOrder(cardDeclined).body(t)}
	first := d.insist(t, r)
	d.await(t, acceptedCharge(t, first).ID)
	for _, api := range d.client.apis {
		r.to = at(api)
		again := d.insist(t, r)
		if c := acceptedCharge(t, again); c.Status != "pending" || again.Header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("the replay says %s, replayed %q", c.Status, again.Header.Get("Idempotent-Replayed"))
		}
	}
	read, err := d.client.do(t.Context(), request{method: http.MethodGet, path: first.Header.Get("Location")})
	if err != nil || read.Status != http.StatusOK || !strings.Contains(string(read.Body), `"card_declined"`) {
		t.Errorf("at its location: %d %s, %v", read.Status, read.Body, err)
	}
	head, err := d.client.do(t.Context(), request{method: http.MethodHead, path: first.Header.Get("Location")})
	if err != nil || head.Status != http.StatusOK || len(head.Body) != 0 {
		t.Errorf("HEAD of its location: %d %s, %v", head.Status, head.Body, err)
	}
	if diff := cmp.Diff(read.Header.Get("Content-Type"), head.Header.Get("Content-Type")); diff != "" {
		t.Errorf("content types of GET (-) and HEAD (+):\n%s", diff)
	}
}
