package httpapi

import (
	"net/http"
	"net/netip"
	"testing"
)

// The zone of a link-local address names an interface of this machine, and no other proxy.
func TestClientBehind_aProxyWithAZone(t *testing.T) {
	t.Parallel()
	of := clientBehind([]netip.Prefix{netip.MustParsePrefix("fe80::/10")})
	r := &http.Request{RemoteAddr: "[fe80::1%eth0]:4711", Header: http.Header{"X-Forwarded-For": {"203.0.113.9"}}}
	if got := of(r); got != "203.0.113.9" {
		t.Errorf("the client is %q, want 203.0.113.9", got)
	}
}
