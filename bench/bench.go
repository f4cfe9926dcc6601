package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/payonce/payonce/internal/robustness/fleet"
	"github.com/payonce/payonce/migrations"
)

// bench is what all measurements of a run share.
type bench struct {
	extras

	server *server
	ours   tree
	other  *tree  // of --base; nil where nothing is compared
	folder string // for programs and their logs; removed at the end
	sizes  sizes
	say    io.Writer

	measured  string   // the measurement in progress
	databases []string // of the measurement in progress
}

// extras are what a run can do beside measuring.
type extras struct {
	statements bool
	base       string // a work tree, "" for none
	profiles   string // the folder of the profiles, "" for none
}

// tree is a work tree's programs.
type tree struct {
	programs fleet.Binaries
	bench    string // the program that measures the engine; empty: this one
}

// open builds the programs and starts the server.
func open(ctx context.Context, say io.Writer, chosen sizes, e extras) (*bench, error) {
	folder, err := os.MkdirTemp("", "payonce-bench-*")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	b := &bench{extras: e, folder: folder, sizes: chosen, say: say}
	if err := b.start(ctx); err != nil {
		return nil, errors.Join(err, b.close()) //nolint:contextcheck // it closes whatever happens
	}
	return b, nil
}

func (b *bench) start(ctx context.Context) (err error) {
	fmt.Fprintln(b.say, "building the programs")
	var flags []string
	if b.profiles != "" {
		flag, err := profiling(b.profiles)
		if err != nil {
			return err
		}
		flags = append(flags, flag)
	}
	programs := filepath.Join(b.folder, "bin")
	if err := os.Mkdir(programs, 0o755); err != nil { //nolint:gosec // programs may be run by all
		return fmt.Errorf("make a folder: %w", err)
	}
	if b.ours.programs, err = fleet.Build(ctx, programs, flags...); err != nil {
		return err
	}
	if b.base != "" {
		if b.other, err = buildTree(ctx, b.base, filepath.Join(b.folder, "base")); err != nil {
			return err
		}
	}
	fmt.Fprintln(b.say, "starting PostgreSQL, fsync on")
	if b.server, err = startServer(ctx, b.statements); err != nil || b.sizes.unit == 0 {
		return err
	}
	return b.server.fillLog(ctx, logFiles)
}

// buildTree builds the programs and the bench of another work tree.
func buildTree(ctx context.Context, from, folder string) (*tree, error) {
	for _, build := range [][]string{
		{"-C", from, "build", "-o", folder + "/", "./cmd/api", "./cmd/worker", "./cmd/payonce"},
		{"-C", filepath.Join(from, "bench"), "build", "-o", folder + "/", "."},
	} {
		if said, err := exec.CommandContext(ctx, "go", build...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w: %s", from, err, said)
		}
	}
	in := func(name string) string { return filepath.Join(folder, name) }
	return &tree{programs: fleet.Binaries{API: in("api"), Worker: in("worker"), Payonce: in("payonce")}, bench: in("bench")}, nil
}

func (b *bench) tree(base bool) tree {
	if base {
		return *b.other
	}
	return b.ours
}

// database makes a database for the measurement in progress, migrated by the
// programs that are measured.
func (b *bench) database(ctx context.Context, base bool) (url string, err error) {
	migrate := migrations.Up
	if base {
		migrate = func(ctx context.Context, url string) error {
			_, err := fleet.Run(ctx, map[string]string{"DATABASE_URL": url}, b.other.programs.Payonce, "migrate")
			return err
		}
	}
	url, err = b.server.database(ctx, migrate)
	if err == nil {
		b.databases = append(b.databases, url)
	}
	return url, err
}

// cleanUp removes the databases of a measurement. So during the next one no pages of
// this one wait to be written, autovacuum has nothing else to do, and the disk holds
// no more than the largest of them.
func (b *bench) cleanUp(ctx context.Context) (err error) {
	for _, url := range b.databases {
		err = errors.Join(err, b.server.drop(ctx, url))
	}
	b.databases = nil
	return errors.Join(err, b.server.checkpoint(ctx))
}

func (b *bench) close() (err error) {
	if b.server != nil {
		err = b.server.Close()
	}
	return errors.Join(err, os.RemoveAll(b.folder))
}

// commit is a tree's commit, with "+" behind it if something was changed since; ""
// where there is no git.
func commit(ctx context.Context, tree string) string {
	head, err := exec.CommandContext(ctx, "git", "-C", tree, "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return ""
	}
	name := strings.TrimSpace(string(head))
	if changed, err := exec.CommandContext(ctx, "git", "-C", tree, "status", "--porcelain").Output(); err == nil && len(changed) > 0 {
		name += "+"
	}
	return name
}
