package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	f, err := newFolder(filepath.Dir(s.folder.path), s.account)
	if err != nil {
		return nil, fmt.Errorf("start a standby: %w", err)
	}
	standby := &Server{account: s.account, folder: f, command: slices.Clone(s.command)}
	for i, argument := range standby.command {
		switch argument {
		case s.folder.data():
			standby.command[i] = f.data()
		case s.folder.path:
			standby.command[i] = f.path
		}
	}
	err = s.copyData(ctx, f)
	if err == nil {
		err = standby.run(ctx, "")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a standby: %w", err), standby.close(context.WithoutCancel(ctx)))
	}
	return standby, nil
}

// copyData stops the server, copies its data into a folder that starts as a standby, and
// starts the server. The caller holds s.mu.
func (s *Server) copyData(ctx context.Context, into *folder) error {
	if err := s.keeper.stop(ctx, "INT"); err != nil {
		return err
	}
	if err := s.folder.awaitEnd(ctx); err != nil {
		return err
	}
	if err := runCommand(s.account.command(ctx, "cp", "-R", s.folder.data()+"/.", into.data())); err != nil {
		return err
	}
	follow := fmt.Sprintf("primary_conninfo = 'host=%s port=%s user=postgres application_name=standby'\n", s.folder.path, port)
	for name, content := range map[string]string{"standby.signal": "", "postgresql.auto.conf": follow} {
		path := filepath.Join(into.data(), name)
		if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), s.account.give(path)); err != nil {
			return err
		}
	}
	return s.run(ctx, "")
}
