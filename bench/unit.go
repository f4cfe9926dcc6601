package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// The unit: one row, one transaction, at 32 clients.
const (
	unitClients = 32
	unitTable   = `
create table unit (
  id     bigint      generated always as identity primary key,
  charge text        not null,
  amount bigint      not null,
  at     timestamptz not null default clock_timestamp()
)`
	unitInsert = `insert into unit (charge, amount) values ('ch_0198c5f2e0a97000b1c2d3e4f5a6b7c8', 1000)`
)

// unit is how many of them the server commits in a second at this moment, 0 where
// nothing is to be measured.
func (b *bench) unit(ctx context.Context) (rate float64, err error) {
	if b.sizes.unit == 0 {
		return 0, nil
	}
	url := b.server.URL("unit")
	if err := b.server.CreateDatabase(ctx, "unit"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.server.drop(ctx, url)) }()
	if err := execute(ctx, url, unitTable); err != nil {
		return 0, err
	}
	program, found := b.server.pgbench()
	if !found {
		return ownUnit(ctx, url, b.sizes.unit)
	}
	script := filepath.Join(b.folder, "unit.sql")
	if err := os.WriteFile(script, []byte(unitInsert+";\n"), 0o600); err != nil {
		return 0, fmt.Errorf("write pgbench's script: %w", err)
	}
	command := exec.CommandContext(ctx, program, "-n", "-M", "prepared", "-c", strconv.Itoa(unitClients), "-j", "2",
		"-T", strconv.Itoa(int(b.sizes.unit.Seconds())), "-f", script, url)
	said, err := command.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pgbench: %w: %s", err, said)
	}
	return tps(said)
}

func (s *server) pgbench() (path string, found bool) {
	path = filepath.Join(s.programs, "pgbench")
	_, err := os.Stat(path)
	return path, err == nil
}

// tps reads the rate from pgbench's report.
func tps(said []byte) (float64, error) {
	match := regexp.MustCompile(`(?m)^tps = ([0-9.]+)`).FindSubmatch(said)
	if match == nil {
		return 0, fmt.Errorf("pgbench: it gives no tps: %s", said)
	}
	return strconv.ParseFloat(string(match[1]), 64)
}

// ownUnit does what pgbench would.
func ownUnit(ctx context.Context, url string, d time.Duration) (float64, error) {
	pool, err := openPool(ctx, url, unitClients)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	within, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var done atomic.Int64
	clients := errgroup.Group{}
	for range unitClients {
		clients.Go(func() error {
			for within.Err() == nil {
				if _, err := pool.Exec(ctx, unitInsert); err != nil {
					return fmt.Errorf("measure the unit: %w", err)
				}
				done.Add(1)
			}
			return nil
		})
	}
	err = clients.Wait()
	return float64(done.Load()) / d.Seconds(), err
}
