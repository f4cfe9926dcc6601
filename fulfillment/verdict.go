package fulfillment

import (
	"errors"
	"strings"

	"github.com/payonce/payonce/inbox"
)

// verdict is what the inbox is told about a walk in which some refunds could not
// be brought to their outcome. errs may hold nil. All of them are told to the
// human who reads it; what happens next is decided by the first kind that is
// there:
//
//   - an error is counted as an attempt, and would never be if it hid behind
//     somebody's wait;
//   - a wait lasts until the earliest time that any refund asks for, and is patient
//     only if patience is all that is left to do;
//   - a park comes last: it stops every refund of the charge, so it has to wait
//     until none is left that could still move by itself.
func verdict(errs []error) error {
	var texts []string
	var fault, park bool
	var wait *inbox.WaitError
	patient := true
	for _, err := range errs {
		if err == nil {
			continue
		}
		texts = append(texts, err.Error())
		var parking *inbox.ParkError
		var waiting *inbox.WaitError
		switch {
		case errors.As(err, &parking):
			park = true
		case !errors.As(err, &waiting):
			fault = true
		default:
			patient = patient && waiting.Patient
			if wait == nil || waiting.AtLeast < wait.AtLeast {
				wait = waiting
			}
		}
	}
	all := errors.New(strings.Join(texts, "; "))
	switch {
	case fault:
		return all
	case wait != nil:
		return &inbox.WaitError{AtLeast: wait.AtLeast, Patient: patient && !park, Err: all}
	case park:
		return &inbox.ParkError{Err: all}
	default:
		return nil
	}
}
