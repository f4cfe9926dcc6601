package domain_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testrun"
)

// The request freezes the names of the steps, so that a step which is added to the
// program later changes no charge that was accepted before.
func TestChargeRequested_freezesItsSteps(t *testing.T) {
	t.Parallel()
	request := domain.ChargeRequested{Terms: domain.Terms{MerchantID: "acme", Money: domain.Money{Amount: 1000}, Notify: true, Items: in("requested").Items}}
	bare := request
	bare.Items, bare.Notify = nil, false
	all := []string{"inventory", "payment", "notification"}
	for _, test := range []struct {
		request domain.ChargeRequested
		skipped []string
	}{{request, nil}, {bare, []string{"inventory", "notification"}}} {
		events, err := domain.Open(test.request)
		testrun.Must(t, err)
		first, _ := events[0].(domain.ChargeRequested)
		if !slices.Equal(first.Steps, all) || !slices.Equal(first.Skipped, test.skipped) {
			t.Errorf("frozen are %v without %v, want %v without %v", first.Steps, first.Skipped, all, test.skipped)
		}
	}
	if _, err := domain.Open(domain.ChargeRequested{}); !errors.Is(err, domain.ErrInvalid) {
		t.Errorf("a charge of nothing: %v, want ErrInvalid", err)
	}
	if last := domain.Steps()[len(domain.Steps())-1]; last != domain.Payment {
		t.Errorf("%s is the last step: a capture is the outcome, so no step runs after the payment", last)
	}
}

func TestSubscribersOf_outcomes(t *testing.T) {
	t.Parallel()
	for _, kind := range domain.EventTypes() {
		var want []string
		if kind.Webhook != "" {
			want = []string{domain.Notification}
		}
		if got := in("succeeded").SubscribersOf(kind.Zero, 5); !slices.Equal(got, want) {
			t.Errorf("%s has the subscribers %v, want %v", kind.Name, got, want)
		}
		if got := in("succeeded").SubscribersOf(kind.Zero, 4); len(got) > 0 {
			t.Errorf("%s at a version that needs no webhook has the subscribers %v", kind.Name, got)
		}
	}
}

// What a merchant writes for its own use may be personal data, so an operator does not see it.
func TestDetails_hidesWhatMerchantsWrite(t *testing.T) {
	t.Parallel()
	hidden := map[string][]string{
		"charge.requested.v1":        {"merchant_id", "description", "metadata", "return_url", "steps"},
		"refund.requested.v1":        {"reason"},
		"payment.action_required.v1": {"url"},
	}
	for name, e := range stored() {
		data, err := json.Marshal(e)
		testrun.Must(t, err)
		var all map[string]any
		testrun.Must(t, json.Unmarshal(data, &all))
		details := domain.Details(e)
		if got, want := len(details), len(all)-len(hidden[name]); got != want {
			t.Errorf("%s shows %d of %d members, want %d: %v", name, got, len(all), want, details)
		}
		for _, member := range hidden[name] {
			if details[member] != nil {
				t.Errorf("%s shows %s: %v", name, member, details[member])
			}
		}
	}
	if items := domain.Details(event("charge"))["items"]; items != "2 mug" {
		t.Errorf("the items are shown as %v", items)
	}
}
