package rediscache_test

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fake is a Redis that keeps everything for ever and does what a test tells it.
type fake struct {
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	values map[string]string
	forged map[string]bool // what a test has put, which nobody overwrites
	life   time.Duration   // that the latest entry was given
	// answers replaces the answer to a command where it returns one; hangUp in
	// its place ends the connection.
	answers func(command []string) string
	conns   map[net.Conn]bool
	closed  bool
}

const (
	hangUp = "hang up"
	// drip before an answer makes its bytes come one by one.
	drip = "drip "
)

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{values: map[string]string{}, forged: map[string]bool{}, conns: map[net.Conn]bool{}}
	var err error
	if f.listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	f.running.Go(f.accept)
	t.Cleanup(func() {
		f.does(nil)
		f.mu.Lock()
		f.closed = true
		_ = f.listener.Close()
		for conn := range f.conns {
			_ = conn.Close()
		}
		f.mu.Unlock()
		f.running.Wait()
	})
	return f
}

func (f *fake) url() string { return "redis://" + f.listener.Addr().String() }

// does makes the fake answer otherwise from now on.
func (f *fake) does(answers func(command []string) string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers = answers
}

// only is the one entry that there is.
func (f *fake) only(t *testing.T) (name, value string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.values) != 1 {
		t.Fatalf("there are %d entries, want one", len(f.values))
	}
	for name, value = range f.values {
		break
	}
	return name, value
}

func (f *fake) all() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.values)
}

// latest is how long the entry that was written last may live.
func (f *fake) latest() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.life
}

// put makes an entry what a test wants. Whatever the cache writes there from now on is
// answered and forgotten: what it was handed before may be under way still.
func (f *fake) put(name, value string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.values[name], f.forged[name] = value, true
}

func (f *fake) accept() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		f.conns[conn] = true
		if f.closed {
			_ = conn.Close()
		}
		f.mu.Unlock()
		f.running.Go(func() { f.serve(conn) })
	}
}

func (f *fake) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		said := f.answer(command)
		if said == hangUp {
			return
		}
		if slowly, ok := strings.CutPrefix(said, drip); ok {
			trickle(conn, slowly)
			return
		}
		if _, err := io.WriteString(conn, said); err != nil {
			return
		}
	}
}

// trickle writes a byte every ten milliseconds until nobody wants any more.
func trickle(conn net.Conn, said string) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range len(said) {
		if _, err := io.WriteString(conn, said[i:i+1]); err != nil {
			return
		}
		<-tick.C
	}
}

func (f *fake) answer(command []string) string {
	f.mu.Lock()
	answers := f.answers
	f.mu.Unlock()
	if answers != nil {
		if said := answers(command); said != "" {
			return said
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch command[0] {
	case "SET":
		if !f.forged[command[1]] {
			f.values[command[1]] = command[2]
		}
		f.life, _ = time.ParseDuration(command[4] + "ms")
		return "+OK\r\n"
	case "GETRANGE":
		end, _ := strconv.Atoi(command[3])
		value := f.values[command[1]]
		value = value[:min(len(value), end+1)]
		return fmt.Sprintf("$%d\r\n%s\r\n", len(value), value)
	default:
		return "-ERR unknown command '" + command[0] + "'\r\n"
	}
}

// readCommand reads an array of strings.
func readCommand(in *bufio.Reader) ([]string, error) {
	n, err := readNumber(in)
	if err != nil {
		return nil, err
	}
	command := make([]string, n)
	for i := range command {
		length, err := readNumber(in)
		if err != nil {
			return nil, err
		}
		text := make([]byte, length+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		command[i] = string(text[:length])
	}
	return command, nil
}

func readNumber(in *bufio.Reader) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}
