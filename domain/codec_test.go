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
