package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// journal is an append-only file of changes. What was written before a SIGKILL is read again: the
// operating system has it. A change that was cut is as if it had not been written.
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
	lines := json.NewDecoder(j.file)
	lines.DisallowUnknownFields() // a journal of another version
	for ; ; j.end = lines.InputOffset() {
		var c change
		switch err := lines.Decode(&c); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return j, j.file.Truncate(j.end)
		case err != nil:
			return nil, errors.Join(fmt.Errorf("SANDBOX_FILE is no journal of a sandbox: %w", err), j.file.Close())
		}
		apply(&c)
	}
}

// append writes a change as a line of its own, and returns it as it is read again. After an error nothing
// of it remains.
func (j *journal) append(c *change) (written *change, err error) {
	line, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode a change: %w", err)
	}
	if string(line) != "{}" && j.file != nil { // it did more than read
		n, err := j.file.WriteAt(append([]byte("\n"), line...), j.end)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("write the journal: %w", err), j.file.Truncate(j.end))
		}
		j.end += int64(n)
	}
	err = json.Unmarshal(line, &written)
	return written, err
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
