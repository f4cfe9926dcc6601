package fulfillment

// MostUrgent joins the errors of several refunds.
var MostUrgent = mostUrgent

// StepsAndSubscribers are the names of the lists.
func StepsAndSubscribers() (steps, subscribers []string) {
	f := &Fulfillment{}
	for _, s := range f.steps() {
		steps = append(steps, s.name())
	}
	for _, s := range f.subscribers() {
		subscribers = append(subscribers, s.name)
	}
	return steps, subscribers
}
