package rediscache_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/payonce/payonce/internal/rediscache"
)

// replies is a connection on which these bytes come in.
type replies struct {
	net.Conn

	in io.Reader
}

func (r replies) Read(p []byte) (int, error)     { return r.in.Read(p) }
func (replies) Write(p []byte) (int, error)      { return len(p), nil }
func (replies) SetReadDeadline(time.Time) error  { return nil }
func (replies) SetWriteDeadline(time.Time) error { return nil }
func (replies) Close() error                     { return nil }

// TestGuard: of a reply that was not asked for the client does not even learn
// what it was told to make room for.
func TestGuard(t *testing.T) {
	t.Parallel()
	value := func(n int) string { return fmt.Sprintf("$%d\r\n%s\r\n", n, strings.Repeat("\n", n)) }

	t.Run("what is asked for passes", func(t *testing.T) {
		t.Parallel()
		for _, said := range []string{
			"", "+OK\r\n", "-ERR no\r\n", "$-1\r\n", "$0\r\n\r\n", value(1), value(rediscache.Largest),
			"+OK\r\n-OOM no\r\n+OK\r\n", value(3) + value(rediscache.Largest) + "$-1\r\n" + value(5000) + "+OK\r\n",
		} {
			for _, in := range []io.Reader{strings.NewReader(said), oneByOne{strings.NewReader(said)}} {
				got, err := io.ReadAll(rediscache.Guard(replies{in: in}))
				if err != nil || string(got) != said {
					t.Errorf("of %.40q pass %d of %d bytes: %v", said, len(got), len(said), err)
				}
			}
		}
	})

	t.Run("nothing passes of what is not", func(t *testing.T) {
		t.Parallel()
		for _, said := range unasked() {
			got, err := io.ReadAll(rediscache.Guard(replies{in: strings.NewReader("+OK\r\n" + said)}))
			if err == nil || string(got) != "+OK\r\n" {
				t.Errorf("of %.40q pass %d bytes: %v", said, len(got), err)
			} else if strings.Contains(err.Error(), "4711") {
				t.Errorf("the error repeats what came: %v", err)
			}
		}
	})

	t.Run("a line without end is not read to its end", func(t *testing.T) {
		t.Parallel()
		in := strings.NewReader("-" + strings.Repeat("x", 1<<20))
		if _, err := io.ReadAll(rediscache.Guard(replies{in: in})); err == nil || in.Len() < 1<<20-1<<13 {
			t.Errorf("%d bytes are left: %v", in.Len(), err)
		}
	})
}

// unasked are beginnings of replies that nothing we send is answered with.
func unasked() []string {
	return []string{
		"$4611686018427387904\r\n", "$9223372036854775807\r\n", "$18446744073709551621\r\nhello\r\n", "$20000000000\r\n",
		fmt.Sprintf("$%d\r\n", rediscache.Largest+1), "$-2\r\n", "$-9223372036854775808\r\n", "$\r\n", "$\n", "$4711x\r\n", "$4711 \r\n",
		"*4611686018427387904\r\n", "*1\r\n+OK\r\n", "*0\r\n", "*-1\r\n", strings.Repeat("*1\r\n", 1<<16),
		":4711\r\n", "%1\r\n", "~1\r\n", ">4611686018427387904\r\n", "=15\r\n", "!21\r\n", "_\r\n", "$?\r\n", "\r\n", "\n", "4711\r\n",
		"HTTP/1.1 400 Bad Request\r\n", "-" + strings.Repeat("x", 1<<16), "$" + strings.Repeat("0", 1<<16) + "\r\n",
	}
}

// oneByOne reads a byte at a time.
type oneByOne struct{ io.Reader }

func (o oneByOne) Read(p []byte) (int, error) { return o.Reader.Read(p[:min(len(p), 1)]) }

// FuzzGuard: whatever comes in, behind the guard the client neither panics nor
// returns more than it asked for.
func FuzzGuard(f *testing.F) {
	for _, said := range unasked() {
		f.Add([]byte(said))
	}
	f.Add([]byte("$5\r\nhello\r\n$-1\r\n+OK\r\n-ERR no\r\n$1\r\nxyz\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		conn := redis.NewConn(rediscache.Guard(replies{in: bytes.NewReader(said)}), 0, 0)
		for conn.Err() == nil {
			value, err := redis.Bytes(conn.Receive())
			if err == nil && len(value) > rediscache.Largest {
				t.Fatalf("it returns %d bytes", len(value))
			}
		}
	})
}
