package domain_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

// stored is one event of each kind, as the golden files hold it. An event that needs another form
// gets another name.
func stored() map[string]domain.Event {
	first := charge()
	return map[string]domain.Event{
		"charge.requested.v1":        limited(),
		"inventory.reserved.v1":      domain.InventoryReserved{Items: first.Items},
		"inventory.rejected.v1":      domain.InventoryRejected{Code: domain.OutOfStock},
		"inventory.released.v1":      domain.InventoryReleased{Items: first.Items},
		"payment.started.v1":         domain.PaymentStarted{Provider: "stripe", PaymentIntent: "pi_1"},
		"payment.attempt_failed.v1":  domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 502, RequestID: "req_1"},
		"payment.captured.v1":        domain.PaymentCaptured{Provider: "stripe", PaymentIntent: "pi_1", Amount: 1000, Currency: "EUR", Fee: 30},
		"payment.action_required.v1": acting(),
		"payment.declined.v1":        domain.PaymentDeclined{Failure: stolen()},
		"charge.succeeded.v1":        domain.ChargeSucceeded{},
		"charge.failed.v1":           domain.ChargeFailed{Failure: stolen()},
		"merchant.notified.v1":       domain.MerchantNotified{EventID: "e", Type: "charge.succeeded", Version: 5},
		"charge.cancel_requested.v1": domain.ChargeCancelRequested{},
		"refund.requested.v1":        back("re_1", 400),
		"refund.attempt_failed.v1":   domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 502, RequestID: "req_1"},
		"refund.succeeded.v1":        gone("re_1", "rp_1", 400),
		"refund.failed.v1": domain.RefundFailed{
			RefundID: "re_1", ProviderRefund: "rp_1", Code: domain.ProviderRefused, Message: "the account is closed",
		},
		"refund.reversed.v1": domain.RefundReversed{
			RefundID: "re_1", ProviderRefund: "rp_1", Amount: 400, Message: "the account is closed",
		},
		"refund.observed.v1":           seen(400),
		"charge.dispute_opened.v1":     disputed(),
		"charge.dispute_withdrawn.v2":  withheld(),
		"charge.dispute_reinstated.v2": paidBack(),
		"charge.dispute_updated.v1":    domain.DisputeUpdated{DisputeID: "du_1", Amount: 1000, Reason: "duplicate", Status: "open"},
		"charge.dispute_closed.v2":     domain.DisputeClosed{DisputeID: "du_1", Status: "lost"},
	}
}

// TestStoredEvents has an example and a golden file of each type.
func TestStoredEvents(t *testing.T) {
	t.Parallel()
	if types := len(domain.EventTypes()); types != len(stored()) {
		t.Errorf("%d stored names, %d examples", types, len(stored()))
	}
	files, err := filepath.Glob("testdata/events/*.json")
	if err != nil || len(files) != len(stored()) {
		t.Fatalf("%d files, %d examples: %v", len(files), len(stored()), err)
	}
	for name, want := range stored() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden, err := os.ReadFile("testdata/events/" + name + ".json")
			if err != nil {
				t.Fatal(err)
			}
			e, err := domain.Decode(name, golden)
			if err != nil {
				t.Fatalf("a stored event cannot be read: %v", err)
			}
			if diff := cmp.Diff(want, e); diff != "" {
				t.Errorf("a stored event is read as something else (-want +got):\n%s", diff)
			}
			if got := domain.TypeOf(e); got != name {
				t.Errorf("its name is now %q", got)
			}
			data, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			var compact bytes.Buffer
			if err := json.Compact(&compact, golden); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(compact.String(), string(data)); diff != "" {
				t.Errorf("it is written differently (-golden +now):\n%s", diff)
			}
		})
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()

	t.Run("a name of a newer program is ErrUnknownType", func(t *testing.T) {
		t.Parallel()
		for _, name := range []string{"", "charge.requested", "charge.requested.v2", "Charge.Requested.v1", "ChargeRequested"} {
			if _, err := domain.Decode(name, []byte(`{}`)); !errors.Is(err, domain.ErrUnknownType) {
				t.Errorf("%q: %v, want ErrUnknownType", name, err)
			}
		}
	})

	t.Run("what is no JSON object is refused and named, or an unreadable request", func(t *testing.T) {
		t.Parallel()
		for name := range stored() {
			for _, data := range []string{``, `{`, `[]`, `"x"`, `1`, `{}{}`} {
				e, err := domain.Decode(name, []byte(data))
				if domain.EventTypeNamed(name).Request {
					if diff := cmp.Diff(domain.Event(domain.Unreadable{Name: name}), e); diff != "" || err != nil {
						t.Errorf("%s of %q: %v (-want +got):\n%s", name, data, err, diff)
					}
				} else if err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("%s of %q: %v", name, data, err)
				}
			}
		}
	})

	t.Run("a member that a newer program added is passed over", func(t *testing.T) {
		t.Parallel()
		e, err := domain.Decode("payment.started.v1", []byte(`{"provider":"stripe","payment_intent":"pi_1","new":{}}`))
		if diff := cmp.Diff(stored()["payment.started.v1"], e); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
}

// FuzzDecode: whatever is stored, reading it neither panics nor loses what it
// read: an event that is written and read is the same event.
func FuzzDecode(f *testing.F) {
	for name, e := range stored() {
		data, err := json.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(name, data)
	}
	f.Add("merchant.notified.v1", []byte(`{"event_id":"e","type":"refund.succeeded","version":7}`))
	f.Add("merchant.notified.v1", []byte(`{"version":-1}`))
	f.Add("refund.requested.v1", []byte(`{"refund_id":"re_1","amount":-9223372036854775808,"reason":null}`))
	f.Add("refund.failed.v1", []byte(`{"refund_id":"re_1","provider_refund":"","code":7}`))
	f.Add("refund.succeeded.v1", []byte(`{"amount":9223372036854775808}`))
	f.Add("charge.cancel_requested.v1", []byte(`{"reason":"none is kept"}`))
	f.Add("payment.captured.v1", []byte(`{"amount":-9223372036854775808,"fee":9223372036854775807}`))
	f.Add("charge.requested.v1", []byte(`{"metadata":{"":"\u0000","\ud800":"\ud800"},"items":[]}`))
	f.Add("charge.requested.v1", []byte(`{"amount":1,"AMOUNT":2,"amount":3}`))
	f.Add("inventory.reserved.v1", []byte(`{"items":null}`))
	f.Add("charge.succeeded.v1", []byte(`null`))
	f.Add("charge.failed.v9", []byte(`{}`))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		e, err := domain.Decode(name, data)
		if err != nil {
			return
		}
		if got := domain.TypeOf(e); got != name {
			t.Fatalf("%q was read as %q", name, got)
		}
		first, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		again, err := domain.Decode(name, first)
		if err != nil {
			t.Fatalf("what was written as %s is not read: %v", first, err)
		}
		second, err := json.Marshal(again)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%s became %s: %v", first, second, err)
		}
	})
}
