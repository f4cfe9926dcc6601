package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// change is what one request, one delivery or the passing of time did: one line of the
// journal. It holds what an object has become, not what was done to it.
type change struct {
	Arrived   bool             `json:"arrived,omitempty"`  // a request to the provider, whatever became of it
	Replayed  bool             `json:"replayed,omitempty"` // it was answered by a saved answer
	Key       string           `json:"key,omitempty"`
	Saved     *saved           `json:"saved,omitempty"` // under Key
	Used      string           `json:"used,omitempty"`  // a payment method that is not used again
	Intents   []*intentFields  `json:"intents,omitempty"`
	Captures  []*capture       `json:"captures,omitempty"`
	Refunds   []*refundFields  `json:"refunds,omitempty"`
	Disputes  []*disputeFields `json:"disputes,omitempty"`
	Events    []*eventFields   `json:"events,omitempty"`
	Delivered []string         `json:"delivered,omitempty"` // ids of events that were taken or given up
	Webhook   *effect          `json:"webhook,omitempty"`   // that arrived at the shop
}

// The journal has the fields of these, and the provider's answers Stripe's members.
type (
	intentFields  intent
	refundFields  refund
	disputeFields disputed
	eventFields   event
)

// journal is an append-only file. What was written before a SIGKILL is read again: the
// operating system has it. A line that was cut is as if it had not been written.
type journal struct {
	file *os.File // nil: the records last as long as the process
	end  int64
}

// openJournal opens a file, or makes it, and calls apply for each change in it.
func openJournal(path string, apply func(*change)) (j *journal, err error) {
	j = &journal{}
	if path == "" {
		return j, nil
	}
	if j.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("SANDBOX_FILE cannot be opened: %w", err)
	}
	written, err := io.ReadAll(j.file)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("SANDBOX_FILE cannot be read: %w", err), j.file.Close())
	}
	for {
		line, rest, whole := bytes.Cut(written[j.end:], []byte("\n"))
		if !whole {
			break
		}
		var c change
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, errors.Join(fmt.Errorf("SANDBOX_FILE is no journal of a sandbox: %w", err), j.file.Close())
		}
		apply(&c)
		j.end = int64(len(written) - len(rest))
	}
	return j, j.file.Truncate(j.end)
}

// append writes a change. After an error nothing of it remains.
func (j *journal) append(c *change) error {
	if j.file == nil {
		return nil
	}
	line, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode a change: %w", err)
	}
	if string(line) == "{}" {
		return nil // it only read
	}
	n, err := j.file.WriteAt(append(line, '\n'), j.end)
	if err != nil {
		return errors.Join(fmt.Errorf("write the journal: %w", err), j.file.Truncate(j.end))
	}
	j.end += int64(n)
	return nil
}

func (j *journal) close() error {
	if j.file == nil {
		return nil
	}
	if err := j.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
