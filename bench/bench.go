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

	"github.com/payonce/payonce/internal/robustness/fleet"
	"github.com/payonce/payonce/migrations"
)

// bench is what all measurements of a run share.
type bench struct {
	runCmd

	server *server
	trees  map[bool]tree // ours, and under true that of --base
	self   string        // this program
	folder string        // for programs and their logs; removed at the end
	sizes  sizes
	say    io.Writer

	measured string // the measurement in progress
	made     int    // its databases
}

// tree has the paths of a work tree's programs: api, worker and payonce.
type tree map[string]string

// open builds the programs and starts the server.
func open(ctx context.Context, say io.Writer, c runCmd) (*bench, error) {
	folder, err := os.MkdirTemp("", "payonce-bench-*")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	b := &bench{runCmd: c, trees: map[bool]tree{}, folder: folder, sizes: full(c.For), say: say}
	if c.Quick {
		b.sizes = quick
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
	if b.trees[false], err = build(ctx, "..", filepath.Join(b.folder, "ours")); err != nil {
		return err
	}
	if b.Base != "" {
		if b.trees[true], err = build(ctx, b.Base, filepath.Join(b.folder, "base")); err != nil {
			return err
		}
	}
	if b.self, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	fmt.Fprintln(b.say, "starting PostgreSQL, fsync on")
	if b.server, err = startServer(ctx, b.Statements); err != nil || b.sizes.unit == 0 {
		return err
	}
	return b.server.fillLog(ctx, logFiles)
}

// build builds the programs of a work tree.
func build(ctx context.Context, from, folder string) (tree, error) {
	command := exec.CommandContext(ctx, "go", "build", "-o", folder+"/", "./cmd/api", "./cmd/worker", "./cmd/payonce")
	command.Dir = from
	if said, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s: %w: %s", from, err, said)
	}
	return tree{"api": folder + "/api", "worker": folder + "/worker", "payonce": folder + "/payonce"}, nil
}

// database makes a database for the measurement in progress, migrated by the
// programs that are measured.
func (b *bench) database(ctx context.Context, base bool) (url string, err error) {
	migrate := migrations.Up
	if base {
		migrate = func(ctx context.Context, url string) error {
			_, err := fleet.Run(ctx, map[string]string{"DATABASE_URL": url}, b.trees[true]["payonce"], "migrate")
			return err
		}
	}
	b.made++
	url = b.server.URL(databaseName(b.made))
	if err := b.server.CreateDatabase(ctx, databaseName(b.made)); err != nil {
		return "", err
	}
	if err := migrate(ctx, url); err != nil || !b.Statements {
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
