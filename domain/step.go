package domain

import "slices"

// steps are the steps of a charge, in the order in which they run. Payment is the last one, because its end decides the
// outcome of the charge: what comes after the outcome is a subscriber.
var steps = []Step{inventory, payment}

// subscribers follow the webhook events of a charge, its outcome among them, each independently of the others.
var subscribers = []Step{notification}

// Step is one part of processing a charge.
type Step struct {
	Name   string
	Events []EventType

	// Optional, for new steps: a charge to which the step does not apply lacks it;
	// otherwise it has the step as skipped.
	Optional bool

	// applies reports whether a charge needs the step; nil for every charge. Open asks once.
	applies func(ChargeRequested) bool

	// release is the compensation: the event that returns what the step holds once it is done; nil if it holds nothing.
	// What must be undone at an external service is a subscriber of charge.failed instead.
	release func(Charge) Event

	// pending reports whether a subscriber still has to run for the event at a version; nil for what is no subscriber.
	pending func(c Charge, version int) bool
}

// Steps are the names of the steps before the outcome.
func Steps() []string { return names(steps) }

// Subscribers are the names of the subscribers of webhook events.
func Subscribers() []string { return names(subscribers) }

// Topic is the topic of the outbox: what is requested, and events of the provider.
const Topic = "charges"

func names(list []Step) []string {
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = s.Name
	}
	return names
}

func eventsOf(list []Step) []EventType {
	var types []EventType
	for _, s := range list {
		types = append(types, s.Events...)
	}
	return types
}

func stepNamed(name string) (s Step, found bool) {
	for _, s := range slices.Concat(steps, subscribers) {
		if s.Name == name {
			return s, true
		}
	}
	return Step{}, false
}

// StepStatus is the progress of one step.
type StepStatus string

// The states of a step.
const (
	StepPending     StepStatus = "pending"
	StepDone        StepStatus = "done"
	StepFailed      StepStatus = "failed"
	StepSkipped     StepStatus = "skipped"
	StepCompensated StepStatus = "compensated"
)

// StepState is one step of a charge.
type StepState struct {
	Name   string     `json:"name"`
	Status StepStatus `json:"status"`
}

// StepStatus is the status of a step; empty if the charge does not have the step.
func (c Charge) StepStatus(name string) StepStatus {
	for _, s := range c.Steps {
		if s.Name == name {
			return s.Status
		}
	}
	return ""
}

// Next is the step that is due: those before it are done or skipped, and the charge has
// no outcome. It is empty if nothing is due. Between a capture and charge.succeeded it may be a subscriber's name.
func (c Charge) Next() string {
	for _, s := range c.Steps {
		if s.Status == StepPending && !c.HasOutcome() {
			return s.Name
		}
		if s.Status != StepDone && s.Status != StepSkipped {
			return ""
		}
	}
	return ""
}

func (c Charge) due(step string) bool { return c.Next() == step }

// SubscriberPending reports whether a subscriber has yet to run for the event at a version.
func (c Charge) SubscriberPending(name string, version int) bool {
	s, _ := stepNamed(name)
	return s.pending != nil && s.pending(c, version)
}

// SubscribersOf are the names of the subscribers that get a message about the event at a
// version: none unless it is a webhook event.
func (c Charge) SubscribersOf(e Event, version int) (names []string) {
	for _, s := range subscribers {
		if byName[TypeOf(e)].Webhook != "" && s.pending(c, version) {
			names = append(names, s.Name)
		}
	}
	return names
}

func (c *Charge) setStep(name string, status StepStatus) {
	for i := range c.Steps {
		if c.Steps[i].Name == name {
			c.Steps[i].Status = status
		}
	}
}
