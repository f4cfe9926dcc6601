package intake_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

func TestAcceptCharge(t *testing.T) {
	t.Parallel()

	t.Run("a charge is accepted in one commit of key, event, posting and message", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		accept(t, keeping(t, db), request("k1"))
		wantCharges(t, db, 1)
		commits := testdb.One[int](t, db, `
select count(distinct xid)
  from (select xmin::text as xid from idempotency_keys
         union all
        select xmin::text from ledger_events
         union all
        select xmin::text from ledger_postings
         union all
        select xmin::text from outbox) as written`)
		if commits != 1 {
			t.Errorf("%d commits", commits)
		}
	})

	t.Run("the answer is the charge as it is stored", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		before := time.Now().Add(-time.Minute)
		got := accept(t, keeping(t, db), request("k1"))
		id, ok := strings.CutPrefix(got.Header.Get("Location"), "/v1/charges/")
		if !ok || got.StatusCode != http.StatusAccepted || got.Header.Get("Content-Type") != "application/json" || got.Replayed {
			t.Errorf("the answer is %+v", got)
		}
		if digits, ok := strings.CutPrefix(id, "ch_"); !ok || len(digits) != 32 || strings.Trim(digits, "0123456789abcdef") != "" {
			t.Errorf("the charge's id is %q", id)
		}
		s := load(t, db, id)
		var view domain.View
		testdb.Must(t, json.Unmarshal(got.Body, &view))
		testrun.Same(t, "the answer, beside the stream", s.View(), view)
		want := domain.ChargeRequested{
			MerchantID: "acme", OrderID: "order 1", Amount: 1000, Currency: "EUR", Fee: 30, PaymentMethod: "pm_card_visa",
			Items: []domain.Item{{SKU: "mug", Quantity: 2}}, Description: "two mugs",
			Metadata: map[string]string{"basket": "7"}, Notify: true, Steps: []string{"inventory", "payment", "notification"},
			Reference: "ref_822b33ad87c148a04cd6187403f4a754907a8a1dd02ffe01", // the same for ever: the provider knows it
		}
		testrun.Same(t, "event", domain.Event(want), s.Head().Event)
		if at := s.Head().OccurredAt; at.Before(before) || at.After(time.Now().Add(time.Minute)) {
			t.Errorf("it occurred at %v", at)
		}
		if got.Body[len(got.Body)-1] != '\n' {
			t.Error("the body does not end its line")
		}
	})

	t.Run("a deadline that has passed refuses a new key and no replay", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		in, c := keeping(t, db), mug()
		until := func(d time.Duration) intake.Charge {
			c.ExpiresAt = new(time.Now().Add(d).Format(time.RFC3339Nano))
			return c
		}
		if _, err := in.AcceptCharge(t.Context(), acme(), request("k1"), until(-time.Second)); !errors.Is(err, intake.ErrExpired) {
			t.Errorf("accepted: %v", err)
		}
		first, err := in.AcceptCharge(t.Context(), acme(), request("k1"), until(time.Hour)) // the key is free
		testdb.Must(t, err)
		again, err := in.AcceptCharge(t.Context(), acme(), request("k1"), until(-time.Second))
		testdb.Must(t, err)
		if !again.Replayed || again.Header.Get("Location") != first.Header.Get("Location") {
			t.Errorf("the replay is %+v", again)
		}
		wantCharges(t, db, 1)
	})

	t.Run("the message names the event and has the request's metadata, which is no part of the request", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		in, r := keeping(t, db), request("k1")
		r.Metadata = map[string]string{
			"traceparent": "t1", "type": "forged", "ordering_key": "forged", "correlation_id": "forged", "causation_id": "forged",
		}
		got := accept(t, in, r)
		r.Metadata = map[string]string{"traceparent": "t2"}
		if again := accept(t, in, r); !again.Replayed {
			t.Error("a request with other metadata is another request")
		}
		s := load(t, db, strings.TrimPrefix(got.Header.Get("Location"), "/v1/charges/"))
		var topic, messageID string
		var payload []byte
		var metadata map[string]string
		err := db.QueryRow(t.Context(), `select topic, message_id, payload, metadata from outbox`).Scan(&topic, &messageID, &payload, &metadata)
		testdb.Must(t, err)
		envelope, err := ledger.DecodeEnvelope(payload)
		testdb.Must(t, err)
		e := s.Head()
		if topic != domain.Topic || messageID != e.ID.String() || envelope.ID != messageID || envelope.ChargeID != s.ID || envelope.Version != 1 {
			t.Errorf("topic %s, message %s, envelope %+v, event %s of %s", topic, messageID, envelope, e.ID, s.ID)
		}
		want := map[string]string{
			"traceparent": "t1", "type": "charge.requested.v1", "ordering_key": s.ID, "partition_key": "acme", "correlation_id": "req_1", "causation_id": e.ID.String(),
		}
		testrun.Same(t, "metadata", want, metadata)
	})
}

func TestCancelCharge(t *testing.T) {
	t.Parallel()
	t.Run("a charge without outcome is asked to be canceled, once", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		in := keeping(t, db)
		charge := charge(t, in, "charge")
		for _, key := range []string{"k1", "k1", "k2"} {
			got, err := in.CancelCharge(t.Context(), acme(), to("cancel", key), charge)
			if err != nil || got.StatusCode != http.StatusAccepted || got.Header.Get("Location") != "/v1/charges/"+charge || !strings.Contains(string(got.Body), `"status":"pending"`) {
				t.Errorf("%s: %v: %+v", key, err, got)
			}
		}
		if s := load(t, db, charge); len(s.Events) != 2 || s.Head().Type != "charge.cancel_requested.v1" {
			t.Errorf("the stream has %d events and ends with %s", len(s.Events), s.Head().Type)
		}
		if got := tables(t, db); got["outbox"] != 2 || got["idempotency_keys"] != 3 {
			t.Errorf("rows: %v", got)
		}
	})

	t.Run("twenty cancellations at once append one event", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		in := keeping(t, db)
		charge := charge(t, in, "charge")
		accepted := rivals(t, 20, func(i int) (idempotency.Result, error) {
			return in.CancelCharge(t.Context(), acme(), to("cancel", fmt.Sprint("k", i)), charge)
		})
		if s := load(t, db, charge); accepted != 20 || len(s.Events) != 2 {
			t.Errorf("%d accepted, %d events", accepted, len(s.Events))
		}
	})
}
