package inbox

import "time"

// Message is what was received.
type Message struct {
	ID          string // unique per receiver
	Type        string
	OrderingKey string // messages of one key are processed one at a time; the id where empty

	// Payload belongs to the id byte for byte: under a known id another payload is
	// quarantined, also one that says the same in another spelling. A message whose
	// id is made of its content has the form that was hashed: idempotency.Content
	// returns it.
	Payload []byte

	Metadata map[string]string
}

// Delivery is a message in the hands of one holder.
type Delivery struct {
	Message

	// Attempt counts from 1. Waiting for the outside does not count.
	Attempt int
	// Waits counts how often the handler has waited for the outside.
	Waits int

	row     int64
	fence   int64
	claimed time.Time // when this holder took it, by the database's clock
}
