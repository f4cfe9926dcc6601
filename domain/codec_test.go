package domain_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testrun"
)

// TestStoredEvents: each golden file is read without loss, and written as it is.
func TestStoredEvents(t *testing.T) {
	t.Parallel()
	if files, err := filepath.Glob("testdata/events/*.json"); err != nil || len(files) != len(stored()) {
		t.Errorf("%d files, %d stored names: %v", len(files), len(stored()), err)
	}
	for name, e := range stored() {
		var compact bytes.Buffer
		testrun.Must(t, json.Compact(&compact, read("events/"+name+".json")))
		data, err := json.Marshal(e)
		if diff := cmp.Diff(compact.String(), string(data)); diff != "" || err != nil || domain.TypeOf(e) != name {
			t.Errorf("%s is written as another event (-golden +now): %v\n%s", name, err, diff)
		}
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

	t.Run("a step of a newer program is ErrUnknownType", func(t *testing.T) {
		t.Parallel()
		if _, err := domain.Decode("charge.requested.v1", []byte(`{"amount":1,"steps":["inventory","rocket","payment"]}`)); !errors.Is(err, domain.ErrUnknownType) {
			t.Errorf("the error is %v, want ErrUnknownType", err)
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
		testrun.Must(f, err)
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
		testrun.Must(t, err)
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
