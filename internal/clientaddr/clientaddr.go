// Package clientaddr finds the addresses of a request: those of its client and the host that it
// asked for.
package clientaddr

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Client returns what finds the address of a request's client: that of the connection or, where
// this is a trusted proxy's, the last one in X-Forwarded-For that is not.
func Client(proxies []netip.Prefix) func(*http.Request) string {
	trusted := func(address string) bool {
		ip, err := netip.ParseAddr(address)
		return err == nil && slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(ip.Unmap().WithZone("")) })
	}
	return func(r *http.Request) string {
		direct, _, _ := net.SplitHostPort(r.RemoteAddr)
		client := direct
		for _, hop := range slices.Backward(strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")) {
			if !trusted(client) {
				break
			}
			ip, err := address(strings.TrimSpace(hop))
			if err != nil {
				return direct // who wrote it is not known
			}
			client = ip.String()
		}
		return client
	}
}

// address reads a hop. Some proxies add the port of the connection.
func address(hop string) (netip.Addr, error) {
	if with, err := netip.ParseAddrPort(hop); err == nil {
		return with.Addr(), nil
	}
	return netip.ParseAddr(strings.Trim(hop, "[]"))
}

// Host is the host that a browser asked for, in lower case and without its port. A page of another
// site whose name leads here (DNS rebinding) has its own host.
func Host(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// Network returns an IPv4 address as it is, and of an IPv6 address the /64 that one client has.
func Network(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil && ip.Is6() && !ip.Is4In6() {
		network, _ := ip.WithZone("").Prefix(64)
		return network.String()
	}
	return address
}
