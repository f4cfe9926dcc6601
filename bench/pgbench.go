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
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
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
func (s *stage) unit(ctx context.Context) (rate float64, err error) {
	if s.sizes.unit == 0 {
		return 0, nil
	}
	url := s.server.URL("unit")
	if err := s.server.CreateDatabase(ctx, "unit"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.server.drop(ctx, url)) }()
	if err := execute(ctx, url, unitTable); err != nil {
		return 0, err
	}
	program, found := s.server.pgbench()
	if !found {
		return ownUnit(ctx, url, s.sizes.unit)
	}
	script := filepath.Join(s.folder, "unit.sql")
	if err := os.WriteFile(script, []byte(unitInsert+";\n"), 0o600); err != nil {
		return 0, fmt.Errorf("write pgbench's script: %w", err)
	}
	command := exec.CommandContext(ctx, program, "-n", "-M", "prepared", "-c", strconv.Itoa(unitClients), "-j", "2",
		"-T", strconv.Itoa(int(s.sizes.unit.Seconds())), "-f", script, url)
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

// tps reads what pgbench says at its end.
func tps(said []byte) (float64, error) {
	match := regexp.MustCompile(`(?m)^tps = ([0-9.]+)`).FindSubmatch(said)
	if match == nil {
		return 0, fmt.Errorf("pgbench: it gives no tps: %s", said)
	}
	return strconv.ParseFloat(string(match[1]), 64)
}

// ownUnit does what pgbench would.
func ownUnit(ctx context.Context, url string, d time.Duration) (float64, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return 0, fmt.Errorf("measure the unit: %w", err)
	}
	config.MaxConns = unitClients
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return 0, fmt.Errorf("measure the unit: %w", err)
	}
	defer pool.Close()
	within, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var done [unitClients]int
	began := time.Now()
	clients := errgroup.Group{}
	for i := range done {
		clients.Go(func() error {
			for within.Err() == nil {
				if _, err := pool.Exec(ctx, unitInsert); err != nil {
					return fmt.Errorf("measure the unit: %w", err)
				}
				done[i]++
			}
			return nil
		})
	}
	if err := clients.Wait(); err != nil {
		return 0, err
	}
	sum := 0
	for _, n := range done {
		sum += n
	}
	if sum == 0 {
		return 0, errors.New("measure the unit: nothing was committed")
	}
	return float64(sum) / time.Since(began).Seconds(), nil
}
