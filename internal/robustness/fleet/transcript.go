package fleet

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
)

// transcript writes a program's stderr into the log file, and looks for the line in
// which the program logs its address.
type transcript struct {
	log       io.Writer
	listening chan<- string
	listens   bool
	text      []byte // all until the program listens
}

func (t *transcript) Write(text []byte) (int, error) {
	if !t.listens {
		t.text = append(t.text, text...)
		for line := range bytes.Lines(t.text) {
			var entry struct {
				Message string `json:"msg"`
				Addr    string `json:"addr"`
			}
			if json.Unmarshal(line, &entry) == nil && entry.Message == "listening" && entry.Addr != "" {
				t.listens = true
				t.listening <- entry.Addr
				break
			}
		}
	}
	return t.log.Write(text)
}

// has reports whether the program wrote these words before it listened. It is called
// after the program has ended.
func (t *transcript) has(words string) bool { return bytes.Contains(t.text, []byte(words)) }

// tailBytes is how much of a log's end is looked at, tailLines how many lines
// of it are shown.
const (
	tailBytes = 8 << 10
	tailLines = 12
)

// Tail is the end of the program's log, for a report of what went wrong.
func (p *Process) Tail() string {
	log, err := os.Open(p.program.file(".log"))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = log.Close() }()
	if size, err := log.Seek(0, io.SeekEnd); err == nil {
		_, _ = log.Seek(max(0, size-tailBytes), io.SeekStart)
	}
	text, err := io.ReadAll(log)
	if err != nil {
		return err.Error()
	}
	return string(tail(text, tailLines))
}
