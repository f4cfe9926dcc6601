package rediscache

import (
	"context"
	"time"

	"github.com/payonce/payonce/internal/postgres"
)

// Largest is the longest value that is asked for.
const Largest = largest + 1

// OpenReadingOften opens a cache that reads the state of the database often.
func OpenReadingOften(ctx context.Context, db *postgres.DB, url string, o Options) (*Cache, error) {
	o.interval = 20 * time.Millisecond
	return Open(ctx, db, url, o)
}

// State is what the cache takes for the state of the database, "" while it knows none.
func (c *Cache) State() string {
	if s := c.state.Load(); s != nil {
		return string(s.key)
	}
	return ""
}
