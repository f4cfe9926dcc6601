package rediscache

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// longestLine is the longest line that a reply may begin with.
const longestLine = 4 << 10

// The sentence does not repeat the reply: it may hold anything.
var errReply = errors.New("the reply is too long or of a kind that was not asked for")

// guard is a connection to Redis on which nothing comes in but lines, values of
// the size that get asks for, and no value. The client behind it makes room for
// whatever length it is told, and panics where there is no such room.
type guard struct {
	net.Conn

	in   *bufio.Reader
	line []byte // the first of a reply, as far as it was not read yet
	rest int    // the bytes of the reply behind its line
}

func guarded(conn net.Conn) net.Conn {
	return &guard{Conn: conn, in: bufio.NewReaderSize(conn, longestLine)}
}

// Read fails for good with a reply that was not asked for, of which nothing is
// read: what comes after it is not known to be a reply.
func (g *guard) Read(p []byte) (int, error) {
	if len(g.line) == 0 && g.rest == 0 {
		if err := g.next(); err != nil {
			return 0, err
		}
	}
	if len(g.line) > 0 {
		n := copy(p, g.line)
		g.line = g.line[n:]
		return n, nil
	}
	n, err := g.in.Read(p[:min(len(p), g.rest)])
	g.rest -= n
	return n, err
}

// next reads the line that a reply begins with: +text, -error, $length of a
// value or $-1.
func (g *guard) next() error {
	line, err := g.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return errReply
	}
	if err != nil {
		return err
	}
	switch line[0] {
	case '+', '-':
	case '$':
		length, err := strconv.Atoi(strings.TrimSuffix(string(line[1:]), "\r\n"))
		if err != nil || length < -1 || length > largest+1 {
			return errReply
		}
		if length >= 0 {
			g.rest = length + len("\r\n")
		}
	default:
		return errReply
	}
	g.line = line
	return nil
}

// contain makes an error of a panic: a fault of the client is a failure of the
// cache, and no more. It is deferred before all else, and the client is used in
// our goroutines only.
func contain(err *error) {
	if fault := recover(); fault != nil {
		*err = fmt.Errorf("the client of Redis panicked: %v", fault)
	}
}
