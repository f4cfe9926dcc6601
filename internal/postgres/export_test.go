package postgres

import "github.com/jackc/pgx/v5/pgxpool"

// ErrNotReplicated is the outcome of a commit that is durable on the primary alone.
var ErrNotReplicated = errNotReplicated

// PoolConfig is the configuration that Open makes of an address.
func PoolConfig(url string) (*pgxpool.Config, error) { return poolConfig(url, Options{}, &servers{}) }
