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

// unit is how many of them pgbench commits in a second at this moment, 0 where nothing is
// to be measured.
func (b *bench) unit(ctx context.Context) (rate float64, err error) {
	if b.sizes.unit == 0 {
		return 0, nil
	}
	url := b.server.URL("unit")
	if err := b.server.CreateDatabase(ctx, "unit"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.server.drop(ctx, "unit")) }()
	if err := execute(ctx, url, unitTable); err != nil {
		return 0, err
	}
	script := filepath.Join(b.folder, "unit.sql")
	if err := os.WriteFile(script, []byte(unitInsert+";\n"), 0o600); err != nil {
		return 0, fmt.Errorf("write pgbench's script: %w", err)
	}
	said, err := exec.CommandContext(ctx, filepath.Join(b.server.programs, "pgbench"), "-n", "-M", "prepared",
		"-c", strconv.Itoa(unitClients), "-j", "2", "-T", strconv.Itoa(int(b.sizes.unit.Seconds())), "-f", script, url).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pgbench, which comes with PostgreSQL: %w: %s", err, said)
	}
	return tps(said)
}

// tps reads the rate from pgbench's report.
func tps(said []byte) (float64, error) {
	match := regexp.MustCompile(`(?m)^tps = ([0-9.]+)`).FindSubmatch(said)
	if match == nil {
		return 0, fmt.Errorf("pgbench: it gives no tps: %s", said)
	}
	return strconv.ParseFloat(string(match[1]), 64)
}
