package inbox

// Message is what was received.
type Message struct {
	ID          string
	Type        string
	OrderingKey string
	Payload     []byte
	Metadata    map[string]string
}

// Delivery is a message in the hands of one holder.
type Delivery struct {
	Message

	// Attempt counts from 1. Waiting for the outside does not count.
	Attempt int
	// Waits counts how often the handler has waited for the outside.
	Waits int

	row   int64
	fence int64
}
