package e2e_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAPI looks at what clients may rely on, whatever they send and whatever
// dies meanwhile.
func TestAPI(t *testing.T) {
	t.Parallel()
	long(t)

	t.Run("a key has one answer", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, setup{apis: 2, workers: 1})
		t.Run("however often the request is sent at once", func(t *testing.T) {
			t.Parallel()
			sameRequestAtOnce(t, w)
		})
		t.Run("however the request is written", func(t *testing.T) {
			t.Parallel()
			sameRequestWrittenOtherwise(t, w)
		})
		t.Run("which another body does not get", func(t *testing.T) {
			t.Parallel()
			sameKeyOtherBody(t, w)
		})
		t.Run("which tells what was accepted and not what came of it", func(t *testing.T) {
			t.Parallel()
			replayAfterTheEnd(t, w)
		})
	})
	t.Run("a refused request leaves no row", func(t *testing.T) {
		t.Parallel()
		refusals(t)
	})
	t.Run("a killed api leaves all of a charge or nothing", func(t *testing.T) {
		t.Parallel()
		killedAPI(t)
	})
	t.Run("while the store is down nothing is lost and nothing is doubled", func(t *testing.T) {
		t.Parallel()
		storeDown(t)
	})
	t.Run("SIGTERM lets requests under way finish", func(t *testing.T) {
		t.Parallel()
		drainedAPI(t)
	})
}

func sameRequestAtOnce(t *testing.T, w *world) {
	t.Helper()
	n := 64
	r := request{key: "key-" + unique(), body: newOrder(visa).body(t)}
	answers := make([]answer, n)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			var err error
			if answers[i], _, err = w.client.insist(t.Context(), r); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	firsts := 0
	for _, a := range answers {
		if a.Status != http.StatusAccepted || !bytes.Equal(a.Body, answers[0].Body) {
			t.Errorf("answered %d %s, another one %s", a.Status, a.Body, answers[0].Body)
		}
		switch a.Header.Get("Idempotent-Replayed") {
		case "":
			firsts++
		case "true":
		default:
			t.Errorf("replayed is %q", a.Header.Get("Idempotent-Replayed"))
		}
		if a.Header.Get("Idempotency-Key") != r.key || a.Header.Get("Idempotency-Expires") == "" {
			t.Errorf("a keyed answer has the headers %v", a.Header)
		}
	}
	if firsts != 1 {
		t.Errorf("%d of %d answers are not marked as replayed, want 1", firsts, n)
	}
	w.await(t, acceptedCharge(t, answers[0]).ID)
}

// A request is its meaning: white space, the order of members, escapes, absent
// and empty members and the quotes of a key do not count.
func sameRequestWrittenOtherwise(t *testing.T, w *world) {
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
		got, _, err := w.client.insist(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, acceptedCharge(t, got).ID)
	}
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("one request, written otherwise, became the charges %q", ids)
		}
	}
}

func sameKeyOtherBody(t *testing.T, w *world) {
	t.Helper()
	key, o := "key-"+unique(), newOrder(visa)
	first, _, err := w.client.insist(t.Context(), request{key: key, body: o.body(t)})
	if err != nil {
		t.Fatal(err)
	}
	acceptedCharge(t, first)
	other := o
	other.Amount++
	for range 2 {
		got, err := w.client.do(t.Context(), request{key: key, body: other.body(t)})
		if err != nil {
			t.Fatal(err)
		}
		if p := mustBeProblem(t, got, http.StatusUnprocessableEntity, "idempotency-key-reused"); p.RetryWith != "new-key" || p.Retryable {
			t.Errorf("it may be sent again: %s", got.Body)
		}
		if bytes.Contains(got.Body, []byte("1001")) || bytes.Contains(got.Body, []byte(o.OrderID)) {
			t.Errorf("the refusal tells values: %s", got.Body)
		}
	}
	if _, _, err := w.client.insist(t.Context(), request{key: key, body: o.body(t)}); err != nil {
		t.Errorf("the first request no longer has its answer: %v", err)
	}
}

func replayAfterTheEnd(t *testing.T, w *world) {
	t.Helper()
	r := request{key: "key-" + unique(), body: newOrder(cardDeclined).body(t)}
	first, _, err := w.client.insist(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	w.await(t, acceptedCharge(t, first).ID)
	for _, api := range w.client.apis {
		r.api = api
		again, _, err := w.client.insist(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if c := acceptedCharge(t, again); c.Status != "pending" || again.Header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("the replay says %s, replayed %q", c.Status, again.Header.Get("Idempotent-Replayed"))
		}
	}
	read, err := w.client.do(t.Context(), request{method: http.MethodGet, path: first.Header.Get("Location")})
	if err != nil || read.Status != http.StatusOK || !strings.Contains(string(read.Body), `"card_declined"`) {
		t.Errorf("at its location: %d %s, %v", read.Status, read.Body, err)
	}
	head, err := w.client.do(t.Context(), request{method: http.MethodHead, path: first.Header.Get("Location")})
	if err != nil || head.Status != http.StatusOK || len(head.Body) != 0 {
		t.Errorf("HEAD of its location: %d %s, %v", head.Status, head.Body, err)
	}
	if diff := cmp.Diff(read.Header.Get("Content-Type"), head.Header.Get("Content-Type")); diff != "" {
		t.Errorf("content types of GET (-) and HEAD (+):\n%s", diff)
	}
}
