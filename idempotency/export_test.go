package idempotency

import "time"

func init() { confirmTimeout = 500 * time.Millisecond } //nolint:gochecknoinits // before any test runs
