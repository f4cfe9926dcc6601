package inbox

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
)

// isStoreAway tells whether an error says that our own store was out of reach: it
// restarts, fails over, has no connection or no space left. That is nobody's
// attempt, so the message waits as for anything else outside.
//
// A statement that the server refused is not among these, and neither is one
// that could not be sent because its arguments do not fit.
func isStoreAway(err error) bool {
	if errors.Is(err, postgres.ErrUnknown) {
		return true
	}
	if _, unsent := errors.AsType[pgx.ErrPreprocessingBatch](err); errors.Is(err, postgres.ErrNotCommitted) && !unsent {
		return true
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true // whatever the server said
	}
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		return isOutage(refusal.Code)
	}
	// The errors of a broken connection have this method and no other name in
	// common. What it answers is not asked.
	_, ok := errors.AsType[interface {
		error
		SafeToRetry() bool
	}](err)
	return ok
}

// isOutage tells whether an SQLSTATE is about the server and not the statement.
func isOutage(code string) bool {
	switch code {
	case "57P01", "57P02", "57P03", // it stops, has crashed, starts
		"25006": // a standby: the connection went to the wrong side of a failover
		return true
	}
	switch code[:min(2, len(code))] {
	case "08", "53", "58": // connections, resources, the system below
		return true
	}
	return false
}
