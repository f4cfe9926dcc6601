package httpapi

import (
	"errors"
	"net/netip"

	"github.com/labstack/echo/v4"
)

// clientOf is the client's address; invalid if the connection has none.
func clientOf(c echo.Context) netip.Addr {
	addr, _ := netip.ParseAddr(c.RealIP())
	return addr.Unmap().WithZone("")
}

var errGuessing = errors.New("the address has sent too many API keys that are not valid")
