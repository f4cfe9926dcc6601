package timeline_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/timeline"
)

func TestRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.paid("order-17")
	w.paid("another")
	tl := w.read(id, "")

	t.Run("the whole chain, in the order of time", func(t *testing.T) {
		t.Parallel()
		want := []string{
			"key | POST /v1/charges | acme",
			"event | charge.requested.v1 | api",
			"outbox | passed | charges",
			"inbox | received | fulfillment",
			"event | inventory.reserved.v1 | worker",
			"event | payment.started.v1 | worker",
			"event | payment.attempt_failed.v1 | worker",
			"event | payment.captured.v1 | worker",
			"event | charge.succeeded.v1 | worker",
			"outbox | passed | charges",
			"inbox | done | fulfillment",
			"inbox | received | notification",
			"webhook | merchant.notified.v1 | worker",
			"inbox | done | notification",
		}
		if diff := cmp.Diff(want, chain(tl)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for i, e := range tl.Entries {
			if e.At.IsZero() || e.At.After(tl.AsOf) || e.At.Location() != time.UTC || e.ChargeID != id {
				t.Errorf("entry %d is %+v as of %v", i, e, tl.AsOf)
			}
			if i > 0 && e.At.Before(tl.Entries[i-1].At) {
				t.Errorf("entry %d is earlier than the one before", i)
			}
		}
	})

	t.Run("the charge as it stands", func(t *testing.T) {
		t.Parallel()
		want := []timeline.Charge{{
			ID: id, MerchantID: "acme", OrderID: "17\x1b[2J", Amount: 1000, Currency: "USD", Status: domain.Succeeded,
			PaymentIntent: "pi_" + id,
		}}
		if diff := cmp.Diff(want, tl.Charges); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})

	t.Run("with what an operator needs of each link", func(t *testing.T) {
		t.Parallel()
		requested, succeeded := only(t, tl, timeline.Event, "charge.requested.v1"), only(t, tl, timeline.Event, "charge.succeeded.v1")
		message := func(i int) timeline.Entry {
			var found []timeline.Entry
			for _, e := range tl.Entries {
				if e.Kind == timeline.Inbox && e.Who == "fulfillment" {
					found = append(found, e)
				}
			}
			return found[i]
		}
		for _, test := range []struct {
			name  string
			entry timeline.Entry
			want  map[string]any
		}{
			{"the key", only(t, tl, timeline.Key, "POST /v1/charges"), map[string]any{
				"key": "order-17", "key_hash": idempotency.Hash("order-17"), "status_code": 202, "location": "/v1/charges/" + id,
			}},
			{"the request", requested, map[string]any{
				"amount": int64(1000), "currency": domain.Currency("USD"), "order_id": "17\x1b[2J", "payment_method": "pm_card_visa",
				"items": []string{"2 mug"}, "request": "request of order-17",
			}},
			{"the attempt at the provider", only(t, tl, timeline.Event, "payment.attempt_failed.v1"), map[string]any{
				"provider_status": 500, "provider_request": "req_42", "stage": domain.StageConfirm, "cause": "message",
			}},
			{"the capture", only(t, tl, timeline.Event, "payment.captured.v1"), map[string]any{
				"payment_intent": "pi_" + id, "amount": int64(1000),
			}},
			{"the webhook", only(t, tl, timeline.Webhook, "merchant.notified.v1"), map[string]any{
				"webhook_id": succeeded.Detail["event_id"], "about_version": succeeded.Version, "type": "charge.succeeded",
			}},
			{"the message as it came", message(0), map[string]any{
				"duplicates": 4, "message_id": requested.Detail["event_id"], "type": "charge.requested.v1",
			}},
			{"the message as it ended", message(1), map[string]any{
				"claims": int64(3), "attempts": 1, "waits": 2, "deaths": 0, "holder": "host:1",
			}},
		} {
			for name, want := range test.want {
				if diff := cmp.Diff(want, test.entry.Detail[name]); diff != "" {
					t.Errorf("%s: %s (-want +got):\n%s", test.name, name, diff)
				}
			}
		}
		if requested.Version != 1 || succeeded.Version != 6 {
			t.Errorf("the request is version %d, the outcome %d", requested.Version, succeeded.Version)
		}
	})

	t.Run("and without what a merchant wrote for itself, or a payload", func(t *testing.T) {
		t.Parallel()
		encoded, err := json.Marshal(tl)
		if err != nil || strings.Contains(string(encoded), "a secret") || strings.Contains(string(encoded), "payload") {
			t.Errorf("%v: %s", err, encoded)
		}
	})

	t.Run("of another merchant it is not found", func(t *testing.T) {
		t.Parallel()
		for _, name := range []string{id, "order-17"} {
			if tl, err := timeline.Read(t.Context(), w.db, name, "globex"); !errors.Is(err, timeline.ErrNotFound) {
				t.Errorf("%v: %v", err, chain(tl))
			}
		}
	})
}

func TestReadFindsByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.paid("order-17")
	refund := w.refund("refund-1", id, 400)
	w.refund("order-17", id, 5000) // refused, under a key that was used for something else
	theirs := w.accept("globex", "order-17")
	likeAnID := w.accept("globex", "re_no-refund")

	keys := func(tl timeline.Timeline) []string {
		var lines []string
		for _, e := range tl.Entries {
			if key, isKey := e.Detail["key"].(string); isKey {
				lines = append(lines, strings.Join([]string{e.Who, e.What, key, e.ChargeID}, " "))
			}
		}
		slices.Sort(lines)
		return lines
	}
	ours := []string{"acme POST /v1/charges order-17 " + id, "acme POST /v1/charges/:id/refunds refund-1 " + id}
	refused := "acme POST /v1/charges/:id/refunds order-17 "

	for _, test := range []struct {
		what, name, merchant string
		charges, keys        []string
	}{
		{"a charge, with the keys of its refunds", id, "", []string{id}, ours},
		{"a refund", refund, "acme", []string{id}, ours},
		{
			"a key, in all operations and of all merchants", "order-17", "",
			[]string{id, theirs},
			[]string{ours[0], refused, ours[1], "globex POST /v1/charges order-17 " + theirs},
		},
		{"a key of one merchant", "order-17", "globex", []string{theirs}, []string{"globex POST /v1/charges order-17 " + theirs}},
		{"a key of one merchant that was refused elsewhere", "order-17", "acme", []string{id}, []string{ours[0], refused, ours[1]}},
		{"a key that looks like a refund", "re_no-refund", "", []string{likeAnID}, []string{"globex POST /v1/charges re_no-refund " + likeAnID}},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			tl, err := timeline.Read(t.Context(), w.db, test.name, test.merchant)
			if err != nil {
				t.Fatal(err)
			}
			charges := []string{}
			for _, c := range tl.Charges {
				charges = append(charges, c.ID)
			}
			slices.Sort(charges)
			slices.Sort(test.charges)
			slices.Sort(test.keys)
			if diff := cmp.Diff(test.charges, charges); diff != "" {
				t.Errorf("charges (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.keys, keys(tl)); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
		})
	}

	for _, name := range []string{"ch_unknown", "re_unknown", "unknown", ""} {
		t.Run("nothing by the name "+name, func(t *testing.T) {
			t.Parallel()
			if _, err := timeline.Read(t.Context(), w.db, name, ""); !errors.Is(err, timeline.ErrNotFound) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestReadTellsHowMessagesStand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	number := func(id string) (n int64) {
		if err := w.db.QueryRow(t.Context(), `select id from inbox where ordering_key = $1`, id).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	waiting, running, parked, retried, discarded := w.accept("acme", "1"), w.accept("acme", "2"), w.accept("acme", "3"), w.accept("acme", "4"), w.accept("acme", "5")
	w.receive()
	fresh := w.accept("acme", "6")
	stand := func(id, set string) {
		t.Helper()
		w.exec(`update inbox set `+set+` where ordering_key = $1`, id)
	}
	stand(waiting, `waits = 2, fence = 2, last_error = 'waiting: the provider is away', due_at = clock_timestamp() + interval '1 hour'`)
	stand(running, `status = 'running', fence = 1, attempts = 1, holder = 'host:1', due_at = clock_timestamp() + interval '3 s'`)
	for _, id := range []string{parked, retried, discarded} {
		stand(id, `status = 'dead', fence = 4, attempts = 4, last_error = 'parked: no such thing'`)
	}
	if err := inbox.Retry(t.Context(), w.db, number(retried), "cli:ada"); err != nil {
		t.Fatal(err)
	}
	if err := inbox.Discard(t.Context(), w.db, number(discarded), "cli:bob"); err != nil {
		t.Fatal(err)
	}
	w.exec(`
insert into inbox_quarantine (receiver, message_id, payload, metadata, payload_hash)
select receiver, message_id, 'another', '{}', sha256('another')
  from inbox
 where ordering_key = $1`, parked)

	for _, test := range []struct {
		name, id string
		want     []string
		what     string
		detail   map[string]any
	}{
		{
			"it waits", waiting,
			[]string{"inbox | received | fulfillment", "inbox | pending | fulfillment"},
			"pending",
			map[string]any{"claims": int64(2), "waits": 2, "last_error": "waiting: the provider is away"},
		},
		{
			"somebody holds it", running,
			[]string{"inbox | received | fulfillment", "inbox | running | fulfillment"},
			"running",
			map[string]any{"claims": int64(1), "attempts": 1, "holder": "host:1"},
		},
		{
			"it is parked, and another payload came under its id", parked,
			[]string{"inbox | received | fulfillment", "inbox | quarantined | fulfillment", "inbox | parked | fulfillment"},
			"parked",
			map[string]any{"attempts": 4, "last_error": "parked: no such thing"},
		},
		{
			"it was retried", retried,
			[]string{"inbox | received | fulfillment", "inbox | retried | cli:ada", "inbox | pending | fulfillment"},
			"retried",
			map[string]any{"receiver": "fulfillment"},
		},
		{
			"it was discarded", discarded,
			[]string{"inbox | received | fulfillment", "inbox | discarded | cli:bob"},
			"discarded",
			map[string]any{"receiver": "fulfillment", "claims": int64(4)},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tl, err := timeline.Read(t.Context(), w.db, test.id, "")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, line := range chain(tl) {
				if strings.HasPrefix(line, "inbox ") {
					got = append(got, line)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for name, want := range test.detail {
				if diff := cmp.Diff(want, only(t, tl, timeline.Inbox, test.what).Detail[name]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
		})
	}

	t.Run("nobody has received it yet", func(t *testing.T) {
		t.Parallel()
		tl, err := timeline.Read(t.Context(), w.db, fresh, "")
		if err != nil {
			t.Fatal(err)
		}
		only(t, tl, timeline.Outbox, "waiting")
	})
}

func TestReadOutlivesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.paid("1")
	w.exec(`
insert into ledger_events (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values (gen_random_uuid(), $1, 8, 'charge.praised.v1', 1, 'acme', '{}', '{}', now())`, id)
	tl := w.read(id, "")
	praised := only(t, tl, timeline.Event, "charge.praised.v1")
	if praised.Detail["unreadable"] == nil || tl.Charges[0].Status != "" || tl.Charges[0].OrderID == "" {
		t.Errorf("%+v of %+v", praised, tl.Charges)
	}
	only(t, tl, timeline.Event, "charge.succeeded.v1")
}

// TestEveryEventIsTold keeps the list of details complete.
func TestEveryEventIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.paid("1")
	refund := w.refund("2", id, 400)
	w.decide(id,
		domain.FailRefundAttempt{RefundID: refund, StatusCode: 502, RequestID: "req_7"},
		domain.SucceedRefund{RefundID: refund, Provider: domain.Provider, ProviderRefund: "re_1", Amount: domain.Money{Amount: 400, Currency: "USD"}},
		domain.ReverseRefund{RefundID: refund, ProviderRefund: "re_1", Message: "the card is closed"},
	)
	failed := w.refund("3", id, 100)
	w.decide(id, domain.FailRefund{RefundID: failed, ProviderRefund: "re_2", Code: domain.ProviderRefused, Message: "no"})
	tl := w.read(id, "")
	for what, want := range map[string]map[string]any{
		"refund.attempt_failed.v1": {"refund_id": refund, "provider_status": 502, "provider_request": "req_7"},
		"refund.succeeded.v1":      {"refund_id": refund, "provider_refund": "re_1", "amount": int64(400)},
		"refund.reversed.v1":       {"refund_id": refund, "message": "the card is closed"},
		"refund.failed.v1":         {"refund_id": failed, "provider_refund": "re_2", "code": domain.ProviderRefused},
	} {
		for name, value := range want {
			if diff := cmp.Diff(value, only(t, tl, timeline.Event, what).Detail[name]); diff != "" {
				t.Errorf("%s: %s (-want +got):\n%s", what, name, diff)
			}
		}
	}
}
