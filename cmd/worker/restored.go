package main

import (
	"context"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/restore"
)

// restored tells that the tables came through a dump and were not repaired since:
// what is accepted is not lost, and stays where it is.
func restored(ctx context.Context, q postgres.Querier) (why string, err error) {
	n, err := restore.ReadNumbering(ctx, q)
	if err != nil || !n.Foreign() {
		return "", err
	}
	return "the tables were restored from a dump: run payonce outbox repair", nil
}
