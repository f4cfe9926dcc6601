package rediscache

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// sessionLife is how long a session is used: an old one may be left on a server
// that nobody else talks to any more.
const sessionLife = time.Minute

// session is a connection to the database beside the pool. Without it requests
// that have taken the whole pool would switch off the cache when it is needed.
type session struct {
	config *pgx.ConnConfig
	clock  func() time.Time

	conn  *pgx.Conn // nil while there is none
	since time.Time
}

// read asks for the state of the database, on a new connection after a minute
// and after an error.
func (s *session) read(ctx context.Context) (*reading, error) {
	if s.conn != nil && s.clock().Sub(s.since) > sessionLife {
		s.close(ctx)
	}
	if s.conn == nil {
		conn, err := pgx.ConnectConfig(ctx, s.config)
		if err != nil {
			return nil, fmt.Errorf("connect to the database: %w", err)
		}
		s.conn, s.since = conn, s.clock()
	}
	r, err := read(ctx, s.conn, s.clock)
	if err != nil {
		s.close(ctx)
	}
	return r, err
}

func (s *session) close(ctx context.Context) {
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_ = s.conn.Close(ctx) // closed, however much the server hears of it
	s.conn = nil
}
