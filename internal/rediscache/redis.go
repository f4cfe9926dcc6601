package rediscache

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
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

// The sentences do not repeat the value: it may hold a password.
var (
	errAddress = errors.New("REDIS_URL is no address of the form redis://user:password@host:port/db or rediss://…")
	errUser    = errors.New("REDIS_URL names a user without a password: write redis://user:password@host or redis://:password@host")
)

// client is a Redis that is not asked after a failure until a probe succeeds.
type client struct {
	pool *redis.Pool
	away atomic.Bool
}

func newClient(address string, allowPlaintext bool) (*client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errAddress
	}
	_, badPort := strconv.ParseUint("0"+u.Port(), 10, 16)
	_, badDatabase := strconv.ParseUint("0"+strings.TrimPrefix(u.Path, "/"), 10, 31)
	if badPort != nil || badDatabase != nil {
		return nil, errAddress
	}
	if password, _ := u.User.Password(); password == "" && u.User.Username() != "" {
		return nil, errUser
	}
	ip := net.ParseIP(u.Hostname())
	if private := u.Scheme == "rediss" || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback(); !private && !allowPlaintext {
		return nil, fmt.Errorf("REDIS_URL reaches %s without TLS: use rediss://, or set ALLOW_PLAINTEXT=1 where the network is your own", u.Hostname())
	}
	dial := dialGuarded((&net.Dialer{}).DialContext)
	if u.Scheme == "rediss" {
		dial = dialGuarded((&tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12}}).DialContext)
		u.Scheme = "redis" // the dialer agrees on TLS, below the guard
	}
	return &client{pool: &redis.Pool{
		MaxIdle: connections, MaxActive: connections, IdleTimeout: idleTime,
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialURLContext(ctx, u.String(), redis.DialContextFunc(dial),
				redis.DialReadTimeout(patience), redis.DialWriteTimeout(patience))
		},
	}}, nil
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

func dialGuarded(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &guard{Conn: conn, in: bufio.NewReaderSize(conn, 4<<10)}, nil
	}
}

// get reads an entry; empty if there is none. Of a value that is too long it reads only
// as much as shows that.
func (c *client) get(ctx context.Context, name string) ([]byte, error) {
	if c.away.Load() {
		return nil, nil
	}
	return c.do(ctx, "GETRANGE", name, 0, largest)
}

// set writes an entry. A Redis that refuses it, such as for want of memory, can be read.
func (c *client) set(ctx context.Context, name string, value []byte, life time.Duration) error {
	if c.away.Load() {
		return nil
	}
	_, err := c.do(ctx, "SET", name, value, "PX", life.Milliseconds())
	return err
}

// probe decides whether Redis is asked until the next probe.
func (c *client) probe(ctx context.Context) error {
	_, err := c.do(ctx, "GETRANGE", prefix, 0, 0)
	if err == nil || isRefusal(err) {
		c.away.Store(err != nil)
	}
	return err
}

// do sends a command. After a failure Redis counts as away; a refusal is none, nor is a
// caller that is gone, nor are too many callers.
func (c *client) do(ctx context.Context, command string, args ...any) ([]byte, error) {
	conn, err := c.pool.GetContext(ctx)
	if err == nil {
		defer func() { _ = conn.Close() }() // it returns to the pool
	}
	var reply []byte
	if err == nil {
		reply, err = redis.Bytes(conn.Do(command, args...))
	}
	if refusal, ok := errors.AsType[redis.Error](err); ok {
		// Redis repeats parts of a command that it refuses, an answer among them.
		return nil, redis.Error("refused with " + cmp.Or(refusalCode.FindString(string(refusal)), "an unknown code"))
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, redis.ErrPoolExhausted) {
		c.away.Store(true)
	}
	return reply, err
}

var refusalCode = regexp.MustCompile(`^[A-Z]{1,11}\b`)

func isRefusal(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// The sentence does not repeat the reply: it may hold anything.
var errReply = errors.New("the reply is too long or of a kind that was not asked for")

// guard lets through only the replies that get and set ask for: lines and values of a
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
