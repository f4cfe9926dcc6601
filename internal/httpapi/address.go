package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"regexp"

	"github.com/labstack/echo/v4"
)

// hopPort is the port that some proxies add to the address of a hop.
var hopPort = regexp.MustCompile(`(\d\.\d+|\]):\d+`)

// clientBehind returns what finds the address of a request's client: that of the connection or,
// where this is a trusted proxy's, the last one in X-Forwarded-For that is not.
func clientBehind(proxies []netip.Prefix) echo.IPExtractor {
	trusted := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
	for _, p := range proxies {
		trusted = append(trusted, echo.TrustIPRange(&net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}))
	}
	client := echo.ExtractIPFromXFFHeader(trusted...)
	return func(r *http.Request) string {
		forwarded := r.Header[echo.HeaderXForwardedFor]
		for i := range forwarded {
			forwarded[i] = hopPort.ReplaceAllString(forwarded[i], "$1") // the library would trust no hop
		}
		return client(r)
	}
}

// network is an IPv4 address as it is, and of an IPv6 address the /64 that one client has.
func network(client netip.Addr) string {
	if client.Is6() {
		of, _ := client.Prefix(64)
		return of.String()
	}
	return client.String()
}
