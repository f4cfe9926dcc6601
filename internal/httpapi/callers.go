package httpapi

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/internal/merchants"
)

// clientOf is the client's address; invalid if the connection has none.
func clientOf(c echo.Context) netip.Addr {
	addr, _ := netip.ParseAddr(c.RealIP())
	return addr.Unmap().WithZone("")
}

var errGuessing = errors.New("the address has sent too many API keys that are not valid")

const (
	// useInterval is how long a noted use of an API key stands for later ones.
	useInterval = time.Hour
	// recordInterval is how long a use waits to be recorded, with at most mostUses.
	recordInterval = time.Minute
	mostUses       = 10_000
)

// noteUse notes the use of an API key, by its hash, for RecordUses, unless its last use was
// noted lately. It returns when the last use was noted.
func (a *API) noteUse(id [32]byte, noted time.Time) time.Time {
	if now := a.Now(); now.Sub(noted) >= useInterval {
		select {
		case a.uses <- id:
			return now
		default: // the next use is noted
		}
	}
	return noted
}

// RecordUses records which API keys were used since its last call, and returns when to call it
// again. Nothing depends on it but what operators see.
//
// If we die here, or the database refuses: what was noted since the last call is not recorded,
// or is; the next use that is noted records another time. Test: TestRecordUses_cutInItsCommit.
func (a *API) RecordUses(ctx context.Context) (time.Duration, error) {
	var ids [][]byte
	for range len(a.uses) {
		id := <-a.uses
		ids = append(ids, id[:])
	}
	if len(ids) == 0 {
		return recordInterval, nil
	}
	return recordInterval, merchants.RecordUses(ctx, a.DB, ids)
}
