package inbox

import (
	"errors"
	"io"
	"net"
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
)

// isStoreAway tells whether an error says that our own store was out of reach: it
// restarts, fails over, has no connection or no space left. That is nobody's
// attempt, so the message waits as for anything else outside.
//
// A statement that the server refused is not among these, and neither is one
// that could not be sent because its arguments do not fit, nor another host's
// outage in a *url.Error. A read whose connection was cut is a bare
// io.ErrUnexpectedEOF: a handler that meets it elsewhere gives it a name.
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
	if _, elsewhere := errors.AsType[*url.Error](err); elsewhere {
		return false
	}
	// The driver's errors of a broken connection have this method and no other name
	// in common. What it answers is not asked.
	_, broken := errors.AsType[interface {
		error
		SafeToRetry() bool
	}](err)
	_, network := errors.AsType[*net.OpError](err)
	return broken || network || errors.Is(err, io.ErrUnexpectedEOF)
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
