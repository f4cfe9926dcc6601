package rediscache

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/gomodule/redigo/redis"
)

const defaultPort = "6379"

// The sentences do not repeat the value: it may hold a password.
var (
	errAddress = errors.New("REDIS_URL is no address of the form redis://user:password@host:port/db or rediss://…")
	errUser    = errors.New("REDIS_URL names a user without a password: write redis://user:password@host or redis://:password@host")
)

// address is where a Redis is and how one logs in.
type address struct {
	hostPort string
	user     string
	password string
	database int
	tls      bool
	host     string
}

// parse reads redis://user:password@host:port/db or rediss://…; user, password,
// port and db may be missing.
func parse(text string) (address, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return address{}, errAddress
	}
	a := address{host: u.Hostname(), tls: u.Scheme == "rediss"}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return address{}, errAddress
	}
	a.hostPort = net.JoinHostPort(a.host, port)
	if db := strings.TrimPrefix(u.Path, "/"); db != "" {
		if a.database, err = strconv.Atoi(db); err != nil || a.database < 0 {
			return address{}, errAddress
		}
	}
	if u.User != nil {
		a.user = u.User.Username()
		a.password, _ = u.User.Password()
		if a.password == "" && a.user != "" {
			return address{}, errUser
		}
	}
	return a, nil
}

// private refuses a Redis to which answers and the password would travel over a
// network for all to read.
func (a address) private() error {
	if ip := net.ParseIP(a.host); a.tls || a.host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("REDIS_URL reaches %s without TLS: use rediss://, or set ALLOW_PLAINTEXT=1 where the network is your own", a.host)
}

// pool dials when a connection is needed and not before. When all are in use
// nobody waits for one.
func (a address) pool() *redis.Pool {
	return &redis.Pool{
		MaxIdle:     connections,
		MaxActive:   connections,
		IdleTimeout: idleTime,
		DialContext: a.dial,
	}
}

// dial connects and logs in. The client would log in from a goroutine of its
// own, where nobody could recover from its panic.
func (a address) dial(ctx context.Context) (redis.Conn, error) {
	socket, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	conn := redis.NewConn(guarded(socket), patience, patience)
	if err := a.login(conn); err != nil {
		_ = socket.Close()
		return nil, err
	}
	return conn, nil
}

func (a address) connect(ctx context.Context) (net.Conn, error) {
	socket, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", a.hostPort)
	if err != nil || !a.tls {
		return socket, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	secure := tls.Client(socket, &tls.Config{ServerName: a.host, MinVersion: tls.VersionTLS12})
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = socket.Close()
		return nil, fmt.Errorf("agree on TLS: %w", err)
	}
	return secure, nil
}

func (a address) login(conn redis.Conn) error {
	if a.password != "" {
		who := []any{a.password}
		if a.user != "" {
			who = []any{a.user, a.password}
		}
		if _, err := conn.Do("AUTH", who...); err != nil {
			return fmt.Errorf("log in: %w", err)
		}
	}
	if a.database != 0 {
		if _, err := conn.Do("SELECT", a.database); err != nil {
			return fmt.Errorf("select the database: %w", err)
		}
	}
	return nil
}
