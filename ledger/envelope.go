package ledger

import (
	"encoding/json"
	"fmt"
)

// The outbox topics of the ledger's events. Each has one receiver, so a page of the topic
// brings no more than the receiver has room for.
const (
	Topic    = "charges"  // what is asked for: charges, cancellations, refunds
	Outcomes = "outcomes" // what merchants are notified of
)

// Envelope names an event: the payload of an outbox message. It is a wake-up.
// What the event says is in the stream, and the stream is the truth.
type Envelope struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	ChargeID string `json:"charge_id"`
	Version  int    `json:"version"`
}

// Seal is the payload that announces an event of the stream s.
func (s Stream) Seal(e Recorded) ([]byte, error) {
	payload, err := json.Marshal(Envelope{
		ID: e.ID.String(), Type: e.Type, ChargeID: s.ID, Version: e.Version,
	})
	if err != nil {
		return nil, fmt.Errorf("seal event %d of %s: %w", e.Version, s.ID, err)
	}
	return payload, nil
}

// Open reads a payload that Seal made.
func Open(payload []byte) (Envelope, error) {
	var e Envelope
	if err := json.Unmarshal(payload, &e); err != nil {
		return e, fmt.Errorf("open an envelope: %w", err)
	}
	if e.ChargeID == "" || e.Version < 1 {
		return e, fmt.Errorf("open an envelope: it names no event of a charge: %w", ErrNotFound)
	}
	return e, nil
}
