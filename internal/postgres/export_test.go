package postgres

import "github.com/jackc/pgx/v5/pgxpool"

// ErrNotReplicated is the outcome of a commit that is durable on the primary alone.
var ErrNotReplicated = errNotReplicated

// PoolConfig is the configuration that Open makes of an address.
func PoolConfig(url string) (*pgxpool.Config, error) { return poolConfig(url, Options{}, &servers{}) }

// ForgetServer makes the next session the first one of a newer server.
func (db *DB) ForgetServer() {
	db.servers.mu.Lock()
	defer db.servers.mu.Unlock()
	db.servers.system = ""
}
