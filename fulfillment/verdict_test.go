package fulfillment_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
)

func TestMostUrgent(t *testing.T) {
	t.Parallel()
	park := fmt.Errorf("refund re_1: %w", &inbox.ParkError{Err: errors.New("human")})
	wait := func(atLeast time.Duration) error {
		return fmt.Errorf("refund re_2: %w", &inbox.WaitError{AtLeast: atLeast, Err: errors.New("outside")})
	}
	for name, tc := range map[string]struct {
		errs []error
		kind string
	}{
		"nothing is the end":        {nil, "done"},
		"a wait is a wait":          {[]error{wait(0)}, "waits"},
		"a park is a park":          {[]error{park}, "parked"},
		"a park comes after a wait": {[]error{park, wait(time.Hour)}, "waits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := kind(fulfillment.MostUrgent(tc.errs)); got != tc.kind {
				t.Errorf("the verdict is %s, want %s", got, tc.kind)
			}
		})
	}

	t.Run("waits end with the earliest", func(t *testing.T) {
		t.Parallel()
		var waiting *inbox.WaitError
		if err := fulfillment.MostUrgent([]error{wait(time.Hour), wait(time.Minute), wait(2 * time.Minute)}); !errors.As(err, &waiting) || waiting.AtLeast != time.Minute {
			t.Errorf("the verdict is %v, want a wait of a minute", err)
		}
	})

	patient := fmt.Errorf("refund re_3: %w", &inbox.WaitError{Patient: true, Err: errors.New("bank")})
	for name, tc := range map[string]struct {
		errs    []error
		patient bool
	}{
		"waits are patient if all of them are":                       {[]error{patient, patient}, true},
		"waits are not patient beside an outage":                     {[]error{patient, wait(0)}, false},
		"waits are not patient beside an outage, in any order":       {[]error{wait(0), patient}, false},
		"waits are not patient while something else needs the human": {[]error{park, patient}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var waiting *inbox.WaitError
			if err := fulfillment.MostUrgent(tc.errs); !errors.As(err, &waiting) || waiting.Patient != tc.patient {
				t.Errorf("the verdict is %v, want a wait that is patient: %t", err, tc.patient)
			}
		})
	}
}
