package fleet

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
)

// transcript is a program's stderr on its way into the log file. It reads
// along until the program says where it listens.
type transcript struct {
	log       io.Writer
	listening chan<- string
	heard     bool
	read      int    // of said, in whole lines
	said      []byte // all until the program listened
}

func (t *transcript) Write(text []byte) (int, error) {
	if !t.heard {
		t.said = append(t.said, text...)
		t.listen()
	}
	return t.log.Write(text)
}

func (t *transcript) listen() {
	for !t.heard {
		line, _, whole := bytes.Cut(t.said[t.read:], []byte("\n"))
		if !whole {
			return
		}
		t.read += len(line) + 1
		var entry struct {
			Message string `json:"msg"`
			Addr    string `json:"addr"`
		}
		if json.Unmarshal(line, &entry) == nil && entry.Message == "listening" && entry.Addr != "" {
			t.heard = true
			t.listening <- entry.Addr
		}
	}
}

// spokeOf says whether the program wrote these words before it listened. It is
// asked after the program has ended.
func (t *transcript) spokeOf(words string) bool {
	return bytes.Contains(t.said, []byte(words))
}

// tailBytes is how much of a log's end is looked at, tailLines how many lines
// of it are shown.
const (
	tailBytes = 8 << 10
	tailLines = 12
)

// Tail is the end of the program's log, for a report of what went wrong.
func (p *Process) Tail() string {
	log, err := os.Open(p.program.logfile())
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
