package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/migrations"
)

// bench is what all measurements of a run share.
type bench struct {
	runCmd

	server   *server
	programs map[string]string // the folder of the programs, by who made them
	self     string            // this program, which is River's service too
	folder   string            // for programs and their logs; removed at the end
	warm     time.Duration
	replayed int // charges whose responses are asked for again
	made     int // databases of the measurement in progress
	say      io.Writer
}

// open builds the programs and starts the server.
func open(ctx context.Context, say io.Writer, c runCmd) (*bench, error) {
	folder, err := os.MkdirTemp("", "payonce-bench-*")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	b := &bench{runCmd: c, programs: map[string]string{}, folder: folder, say: say, warm: max(2*time.Second, c.For/5), replayed: 2_000}
	if c.Quick {
		b.Repeat, b.For, b.warm, b.replayed = 1, 400*time.Millisecond, 0, 100
	}
	if err := b.start(ctx); err != nil {
		return nil, errors.Join(err, b.close()) //nolint:contextcheck // it closes whatever happens
	}
	return b, nil
}

func (b *bench) start(ctx context.Context) (err error) {
	fmt.Fprintln(b.say, "building the programs")
	if b.Profile != "" {
		if err := os.MkdirAll(b.Profile, 0o755); err != nil { //nolint:gosec // profiles may be read by all
			return fmt.Errorf("make the folder of the profiles: %w", err)
		}
	}
	for by, tree := range map[string]string{byPayonce: "..", byBase: b.Base} {
		if tree == "" {
			continue
		}
		b.programs[by] = filepath.Join(b.folder, by)
		command := exec.CommandContext(ctx, "go", "build", "-o", b.programs[by]+"/", "./cmd/api", "./cmd/worker", "./cmd/payonce")
		command.Dir = tree
		if said, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", tree, err, said)
		}
	}
	if b.self, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	fmt.Fprintln(b.say, "starting PostgreSQL, fsync on")
	if b.server, err = startServer(ctx, b.Statements); err != nil || b.Quick {
		return err
	}
	return b.server.fillLog(ctx, logFiles)
}

// database makes a database, migrated by the programs that are measured.
func (b *bench) database(ctx context.Context, by string) (url string, err error) {
	b.made++
	name := databaseName(b.made)
	url = b.server.URL(name)
	if err := b.server.CreateDatabase(ctx, name); err != nil {
		return "", err
	}
	if by == byBase {
		_, err = harness.Run(ctx, map[string]string{"DATABASE_URL": url}, filepath.Join(b.programs[byBase], "payonce"), "migrate")
	} else {
		err = migrations.Up(ctx, url)
	}
	if err != nil || !b.Statements {
		return url, err
	}
	return url, execute(ctx, url, "create extension pg_stat_statements")
}

func databaseName(n int) string { return "bench" + strconv.Itoa(n) }

// cleanUp removes the databases of a measurement. So during the next one no pages of
// this one wait to be written, autovacuum has nothing else to do, and the disk holds
// no more than the largest of them.
func (b *bench) cleanUp(ctx context.Context) (err error) {
	for ; b.made > 0; b.made-- {
		err = errors.Join(err, b.server.drop(ctx, databaseName(b.made)))
	}
	return errors.Join(err, b.server.checkpoint(ctx))
}

func (b *bench) close() (err error) {
	if b.server != nil {
		err = b.server.Close()
	}
	return errors.Join(err, os.RemoveAll(b.folder))
}

// commit is a tree's commit, with "-dirty" behind it if something was changed since; ""
// where there is no git.
func commit(ctx context.Context, tree string) string {
	name, err := exec.CommandContext(ctx, "git", "-C", tree, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}
