package rediscache_test

import (
	"fmt"
	"io"
	"maps"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
)

// fake is a Redis that keeps everything for ever and answers as a test says.
type fake struct {
	listener net.Listener

	mu     sync.Mutex
	values map[string]string
	forged map[string]bool // what a test has put there, which the cache does not overwrite
	life   time.Duration   // of the latest entry
	// answer replaces the answer to a command unless it returns ""; hangUp ends the
	// connection.
	answer func(command []string) string
}

const hangUp = "hang up"

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{values: map[string]string{}, forged: map[string]bool{}}
	var err error
	if f.listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := f.listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { f.serve(conn) })
		}
	})
	t.Cleanup(func() { // after the cache has closed its connections
		_ = f.listener.Close()
		running.Wait()
	})
	return f
}

func (f *fake) url() string { return "redis://" + f.listener.Addr().String() }

// answers makes the fake answer otherwise from now on.
func (f *fake) answers(answer func(command []string) string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// lastLife is how long the latest entry is kept.
func (f *fake) lastLife() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.life
}

func (f *fake) all() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.values)
}

// put makes an entry what a test wants.
func (f *fake) put(name, value string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.values[name], f.forged[name] = value, true
}

func (f *fake) serve(conn net.Conn) {
	defer conn.Close()
	for in := redis.NewConn(conn, 0, 0); ; {
		command, err := redis.Strings(in.Receive()) // an array of strings, as some replies are
		if err != nil {
			return
		}
		reply := f.reply(command)
		if reply == hangUp {
			return
		}
		if _, err := io.WriteString(conn, reply); err != nil {
			return
		}
	}
}

func (f *fake) reply(command []string) string {
	f.mu.Lock()
	answer := f.answer
	f.mu.Unlock()
	if answer != nil {
		if reply := answer(command); reply != "" {
			return reply
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
