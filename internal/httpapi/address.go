package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
)

// clientOf is the client's address; invalid if the connection has none.
func clientOf(c echo.Context) netip.Addr {
	addr, _ := netip.ParseAddr(c.RealIP())
	return addr.Unmap().WithZone("")
}

// clientBehind returns what finds the address of a request's client: that of the connection or,
// where this is a trusted proxy's, the last one in X-Forwarded-For that is not.
func clientBehind(proxies []netip.Prefix) echo.IPExtractor {
	trusted := func(address string) bool {
		ip, err := netip.ParseAddr(address)
		return err == nil && slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(ip.Unmap().WithZone("")) })
	}
	return func(r *http.Request) string {
		direct, _, _ := net.SplitHostPort(r.RemoteAddr)
		client := direct
		for _, hop := range slices.Backward(strings.Split(strings.Join(r.Header[echo.HeaderXForwardedFor], ","), ",")) {
			if !trusted(client) {
				break
			}
			ip, err := addressOf(strings.TrimSpace(hop))
			if err != nil {
				return direct // who wrote it is not known
			}
			client = ip.String()
		}
		return client
	}
}

// addressOf reads a hop. Some proxies add the port of the connection.
func addressOf(hop string) (netip.Addr, error) {
	if with, err := netip.ParseAddrPort(hop); err == nil {
		return with.Addr(), nil
	}
	return netip.ParseAddr(strings.Trim(hop, "[]"))
}

// network is an IPv4 address as it is, and of an IPv6 address the /64 that one client has.
func network(client netip.Addr) string {
	if client.Is6() {
		of, _ := client.Prefix(64)
		return of.String()
	}
	return client.String()
}
