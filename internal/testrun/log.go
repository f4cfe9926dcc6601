package testrun

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
)

// Log is what a program logs. A test reads it while the program writes it.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all that was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Field waits for a JSON line with a message, and returns one of its fields.
func (l *Log) Field(tb TB, message, field string) (value string) {
	tb.Helper()
	Progress(tb, "a line says "+message, func() (string, bool) {
		var found bool
		value, found = l.Find(tb, message, field)
		return l.String(), found
	})
	return value
}

// Find returns a field of the first JSON line with a message, if there is one yet. A line
// that is no JSON ends the test.
func (l *Log) Find(tb TB, message, field string) (value string, found bool) {
	tb.Helper()
	for line := range strings.Lines(l.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			tb.Fatalf("a line is not JSON: %s", line)
		}
		if fields["msg"] == message {
			return fmt.Sprint(fields[field]), true
		}
	}
	return "", false
}
