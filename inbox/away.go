package inbox

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
)

// isStoreAway tells whether an error says that our own store was out of reach: it
// restarts, fails over, has no connection or no space left, or others held a lock
// for too long. That is nobody's attempt, so the message waits as for anything
// else outside.
//
// A statement that the server refused is not among these, nor one that ran for
// too long, which may be the message's own doing. Neither is one that could not be
// sent because its arguments do not fit, nor another host's outage, nor the end of
// a text that was cut: they have the names that our own store's have not.
func isStoreAway(err error) bool {
	if errors.Is(err, postgres.ErrUnknown) || errors.Is(err, postgres.ErrNoConnection) {
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
	// What pgx itself has to say of a connection that is not a postgres.DB's has this
	// method and no other name in common. What it answers is not asked.
	_, broken := errors.AsType[interface {
		error
		SafeToRetry() bool
	}](err)
	return broken
}

// isOutage tells whether an SQLSTATE is about the server, or about others who use
// it, and not about the statement.
func isOutage(code string) bool {
	switch code {
	case "57P01", "57P02", "57P03", // it stops, has crashed, starts
		"25006",                   // a standby: the connection went to the wrong side of a failover
		"40001", "40P01", "55P03": // a race, a deadlock, a lock that did not come in time
		return true
	}
	switch code[:min(2, len(code))] {
	case "08", "53", "58": // connections, resources, the system below
		return true
	}
	return false
}

// isTimeout tells of a statement that the server ended for its length. The end of
// a claim is one row: if that is too long, others are in the way.
func isTimeout(err error) bool {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	return ok && refusal.Code == "57014"
}
