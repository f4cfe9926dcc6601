package rediscache

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

const (
	// patience bounds each dial, each write and each read.
	patience = 50 * time.Millisecond
	// largest is the longest value that is kept or read.
	largest = 64 << 10

	connections = 64
	idleTime    = time.Minute
)

// The sentence does not repeat the value: it may hold a password.
var errAddress = errors.New("REDIS_URL is no address of the form redis://user:password@host:port/db, redis://:password@host or rediss://…")

// newPool makes the connections to Redis. It connects when the first command is sent.
func newPool(address string, allowPlaintext bool) (*redis.Pool, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errAddress
	}
	password, _ := u.User.Password()
	_, badPort := strconv.ParseUint("0"+u.Port(), 10, 16)
	_, badDatabase := strconv.ParseUint("0"+strings.TrimPrefix(u.Path, "/"), 10, 31)
	if badPort != nil || badDatabase != nil || password == "" && u.User.Username() != "" {
		return nil, errAddress
	}
	ip := net.ParseIP(u.Hostname())
	if private := u.Scheme == "rediss" || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback(); !private && !allowPlaintext {
		return nil, fmt.Errorf("REDIS_URL reaches %s without TLS: use rediss://, or set ALLOW_PLAINTEXT=1 where the network is your own", u.Hostname())
	}
	dial := (&net.Dialer{Timeout: patience}).DialContext
	if u.Scheme == "rediss" {
		dial = (&tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: &tls.Config{MinVersion: tls.VersionTLS12}}).DialContext
		u.Scheme = "redis" // the dialer agrees on TLS, below the guard
	}
	guarded := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &guard{Conn: conn, in: bufio.NewReaderSize(conn, 4<<10)}, nil
	}
	return &redis.Pool{
		MaxIdle: connections, MaxActive: connections, IdleTimeout: idleTime,
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialURLContext(ctx, u.String(), redis.DialContextFunc(guarded),
				redis.DialReadTimeout(patience), redis.DialWriteTimeout(patience))
		},
	}, nil
}

// The sentence does not repeat the reply: it may hold anything.
var errReply = errors.New("the reply is too long or of a kind that was not asked for")

// guard lets through only the replies that GETRANGE and SET have: lines and values of a
// bounded length. The client behind it allocates whatever length a reply announces.
type guard struct {
	net.Conn

	in    *bufio.Reader
	reply io.Reader // the rest of the current one
}

// Read fails with errReply before anything of a reply that was not asked for is read.
func (g *guard) Read(p []byte) (int, error) {
	if g.reply != nil {
		if n, err := g.reply.Read(p); n > 0 || !errors.Is(err, io.EOF) {
			return n, err
		}
	}
	line, err := g.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return 0, errReply
	}
	if err != nil {
		return 0, err
	}
	rest := 0
	switch line[0] {
	case '+', '-':
	case '$':
		length, err := strconv.Atoi(strings.TrimSuffix(string(line[1:]), "\r\n"))
		if err != nil || length < -1 || length > largest+1 {
			return 0, errReply
		}
		if length >= 0 {
			rest = length + len("\r\n")
		}
	default:
		return 0, errReply
	}
	g.reply = io.MultiReader(bytes.NewReader(line), io.LimitReader(g.in, int64(rest)))
	return g.reply.Read(p)
}
