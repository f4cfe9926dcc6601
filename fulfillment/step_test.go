package fulfillment_test

import (
	"slices"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
)

// A step or a subscriber that only one of the two packages lists would never run.
func TestSteps_matchTheDomain(t *testing.T) {
	t.Parallel()
	steps, subscribers := fulfillment.StepsAndSubscribers()
	if !slices.Equal(steps, domain.Steps()) || !slices.Equal(subscribers, domain.Subscribers()) {
		t.Errorf("fulfillment runs %v and %v, domain has %v and %v", steps, subscribers, domain.Steps(), domain.Subscribers())
	}
}
