package domain_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testrun"
)

// TestAppend compares the states that each event may follow with testdata/validate.txt: what no line names is
// refused. A request that is refused is void in a stored stream: it changes the version, and posts nothing.
func TestAppend(t *testing.T) {
	t.Parallel()
	var lines []string
	all := maps.Clone(histories().candidates)
	for _, kind := range domain.EventTypes() {
		if kind.Request {
			all[kind.Name+" that cannot be read"] = domain.Unreadable{Name: kind.Name}
		}
	}
	for _, s := range histories().states {
		if _, err := (domain.Charge{}).Append(history(s.name)...); err != nil {
			t.Errorf("the history of %s: %v", s.name, err)
		}
	}
	for name, e := range all {
		var after []string
		for _, s := range histories().states {
			before := in(s.name)
			c, err := before.Append(e)
			if err == nil {
				after = append(after, s.name)
				continue
			}
			testrun.Same(t, fmt.Sprintf("%s after %s: Append has changed the charge", name, s.name), before, c)
			want := fmt.Sprintf("%s at version %d", domain.TypeOf(e), before.Version+1)
			if !errors.Is(err, domain.ErrIllegal) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s after %s: the error is %v, want ErrIllegal: %s", name, s.name, err, want)
			}
			void := domain.EventTypeNamed(domain.TypeOf(e)).Request
			if before.Voids(e) != void {
				t.Errorf("%s after %s is void: %t, want %t", name, s.name, !void, void)
			}
			if !void {
				continue
			}
			if legs := domain.Postings(before, e); legs != nil {
				t.Errorf("%s after %s posts %+v", name, s.name, legs)
			}
			folded := domain.Fold(before, e)
			if before.Version++; !cmp.Equal(before, folded) {
				t.Errorf("%s after %s (-before +after):\n%s", name, s.name, cmp.Diff(before, folded))
			}
		}
		if len(after) > 0 {
			lines = append(lines, name+" | "+strings.Join(after, ", "))
		}
	}
	slices.Sort(lines)
	testrun.Golden(t, "validate.txt", append(lines, "")...)
}

// TestView compares what merchants see of charges, a refund and a dispute with testdata/views.txt.
func TestView(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 13, 0, 0, 0, time.FixedZone("elsewhere", 3600))
	var lines []string
	show := func(name string, view any) {
		data, err := json.Marshal(view)
		testrun.Must(t, err)
		lines = append(lines, name+" | "+string(data))
	}
	for _, name := range []string{"requested", "rejected", "declined", "acting", "refunded and notified"} {
		show(name, in(name).View(at))
	}
	show("without metadata", domain.Fold(domain.Charge{}, domain.ChargeRequested{Terms: domain.Terms{Money: domain.Money{Amount: 1}}}).View(at))
	c := in("refund failed")
	show("refund failed", c.RefundView(c.Refunds[0]))
	c = in("dispute won")
	show("dispute won", c.DisputeView(c.Disputes[0]))
	only := domain.Fold(domain.Charge{}, event(`charge {"steps":["payment"]}`))
	show("only the frozen steps", only.View(at))
	if only.Next() != domain.Payment || only.StepStatus(domain.Inventory) != "" {
		t.Errorf("next is %q, inventory is %q", only.Next(), only.StepStatus(domain.Inventory))
	}
	testrun.Golden(t, "views.txt", append(lines, "")...)
}

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
	for name, data := range map[string]string{ // of a newer program: a type, or a step
		"": `{}`, "charge.requested": `{}`, "charge.requested.v2": `{}`, "Charge.Requested.v1": `{}`, "ChargeRequested": `{}`,
		"charge.requested.v1": `{"amount":1,"steps":["inventory","rocket","payment"]}`,
	} {
		if _, err := domain.Decode(name, []byte(data)); !errors.Is(err, domain.ErrUnknownType) {
			t.Errorf("%q: %v, want ErrUnknownType", name, err)
		}
	}

	// What is no JSON object is refused and named, or an unreadable request.
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

	e, err := domain.Decode("payment.started.v1", []byte(`{"provider":"stripe","payment_intent":"pi_1","new":{}}`))
	if diff := cmp.Diff(stored()["payment.started.v1"], e); diff != "" || err != nil {
		t.Errorf("a member that a newer program added: %v (-want +got):\n%s", err, diff)
	}
}

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
