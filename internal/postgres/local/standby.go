package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Standby starts a hot standby of the server: a copy of its data folder that follows it by
// streaming replication, under the name "standby". The server is stopped for the copy and
// runs when Standby returns. To wait for the standby at each commit, set
// synchronous_standby_names to standby; select pg_promote() promotes it.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("start a standby: the server is closed")
	}
	standby, err := newServer(filepath.Dir(s.dir.Path), s.account)
	if err != nil {
		return nil, err
	}
	for _, argument := range s.command {
		standby.command = append(standby.command, strings.Replace(argument, s.dir.Path, standby.dir.Path, 1))
	}
	err = s.stop(ctx, syscall.SIGINT)
	if err == nil {
		err = standby.copyFrom(ctx, s)
	}
	if err == nil {
		err = s.run(ctx)
	}
	if err == nil {
		err = standby.run(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a standby: %w", err), standby.Close()) //nolint:contextcheck // Close bounds itself
	}
	return standby, nil
}

// copyFrom fills the data folder from that of a stopped primary, so that it starts as its
// standby.
func (s *Server) copyFrom(ctx context.Context, primary *Server) error {
	if err := s.fill(ctx, primary.data()); err != nil {
		return err
	}
	follow := fmt.Sprintf("primary_conninfo = 'host=%s port=%s user=postgres application_name=standby'\n", primary.dir.Path, port)
	for name, content := range map[string]string{"standby.signal": "", "postgresql.auto.conf": follow} {
		path := filepath.Join(s.data(), name)
		if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), s.account.give(path)); err != nil {
			return err
		}
	}
	return nil
}
