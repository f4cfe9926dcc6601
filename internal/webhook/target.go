package webhook

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
)

const maxURLLength = 2048

// CheckURL tells whether a webhook may be registered for this target: an
// absolute http or https URL of printable ASCII that names one host in the only
// way that everybody reads alike. Users, passwords, fragments and numbers that
// some take for addresses (127.1, 0x7f000001) are refused. The error is a
// [TargetError].
//
// It resolves no name and knows no allowed address: those are judged when a
// webhook is delivered.
func CheckURL(raw string) error {
	_, err := parse(raw)
	return err
}

func parse(raw string) (*url.URL, error) {
	if len(raw) > maxURLLength || !visible(raw) {
		return nil, &TargetError{Reason: "the target is longer than 2048 characters or not printable ASCII"}
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, &TargetError{Reason: "the target is not a URL"}
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, &TargetError{Reason: "the target begins with neither http:// nor https://"}
	case u.User != nil:
		return nil, &TargetError{Reason: "the target holds a user or a password"}
	case u.Fragment != "" || strings.HasSuffix(raw, "#"):
		return nil, &TargetError{Reason: "the target holds a fragment"}
	}
	if err := checkHost(u.Hostname()); err != nil {
		return nil, err
	}
	if strings.HasSuffix(u.Host, ":") {
		return nil, &TargetError{Reason: "the target's port is not between 1 and 65535"}
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return nil, &TargetError{Reason: "the target's port is not between 1 and 65535"}
		}
	}
	return u, nil
}

func checkHost(host string) error {
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Is4In6() || a.Zone() != "" {
			return &TargetError{Reason: "the target's address has a zone or maps IPv4 into IPv6"}
		}
		return nil
	}
	odd := func(r rune) bool {
		return r != '-' && r != '_' && r != '.' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}
	name := strings.TrimSuffix(host, ".")
	if name == "" || len(name) > 253 || strings.Contains("."+name+".", "..") || strings.IndexFunc(name, odd) >= 0 {
		return &TargetError{Reason: "the target's host is neither a name nor an address"}
	}
	last := strings.ToLower(name[strings.LastIndexByte(name, '.')+1:])
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return &TargetError{Reason: "the target's host is a number that is no address"}
	}
	return nil
}

func visible(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < '!' || r > '~' }) < 0
}

// IsPublic tells whether a target that CheckURL accepts may be reached without
// the operator's leave, as far as one can tell without resolving a name: it is
// https, and if its host is an address, that is a public one.
func IsPublic(raw string) bool {
	u, err := parse(raw)
	if err != nil || u.Scheme != "https" {
		return false
	}
	a, err := netip.ParseAddr(u.Hostname())
	return err != nil || newGuard(nil).public(a) == nil
}

// control returns a net.Dialer.Control that asks check about the address of each
// socket before it connects, and then next, if there is one.
func control(check func(netip.Addr) error, next dialControl) dialControl {
	return func(network, address string, socket syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || (network != "tcp4" && network != "tcp6") {
			return &TargetError{Reason: "the target is not reached over TCP"}
		}
		if err := check(to.Addr().WithZone("").Unmap()); err != nil || next == nil {
			return err
		}
		return next(network, address, socket)
	}
}

// dialControl is the type of net.Dialer.Control. Of a socket for which it returns
// an error nothing is sent, and no connection is tried.
type dialControl = func(network, address string, socket syscall.RawConn) error

// guard judges addresses. They come without a zone and with IPv4 unmapped.
type guard struct {
	allowed []netip.Prefix
	special []special
	unicast netip.Prefix
}

type special struct {
	netip.Prefix
	what string
}

func newGuard(allow []netip.Prefix) *guard {
	g := &guard{special: specials(), unicast: netip.MustParsePrefix("2000::/3")}
	for _, p := range allow {
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		g.allowed = append(g.allowed, p)
	}
	return g
}

func (g *guard) allows(a netip.Addr) bool {
	for _, p := range g.allowed {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// allowedOnly refuses what the operator did not allow: the rule for plain http.
func (g *guard) allowedOnly(a netip.Addr) error {
	if g.allows(a) {
		return nil
	}
	return &TargetError{Reason: "the target is neither https nor in the operator's allowed networks"}
}

// public refuses what is neither allowed nor public.
func (g *guard) public(a netip.Addr) error {
	if g.allows(a) {
		return nil
	}
	for _, s := range g.special {
		if s.Contains(a) {
			return &TargetError{Reason: "the target leads to an address that is " + s.what}
		}
	}
	if !a.Is4() && !g.unicast.Contains(a) {
		return &TargetError{Reason: "the target leads to an address that is not global unicast"}
	}
	return nil
}

// specials returns what IANA's special-purpose registries and the clouds keep
// out of the public Internet. In IPv6 it only holds exceptions from 2000::/3:
// what lies outside is refused as a whole.
func specials() []special {
	var all []special
	for what, prefixes := range map[string][]string{
		"unspecified":                {"0.0.0.0/8"},
		"private":                    {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"},
		"shared by a carrier's NAT":  {"100.64.0.0/10"},
		"loopback":                   {"127.0.0.0/8"},
		"link-local":                 {"169.254.0.0/16"},
		"kept for protocols":         {"192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24", "2001::/23", "2620:4f:8000::/48"},
		"kept for documentation":     {"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"},
		"kept for benchmarks":        {"198.18.0.0/15"},
		"a relay between IPv4 and 6": {"192.88.99.0/24", "2002::/16"},
		"multicast":                  {"224.0.0.0/4"},
		"reserved or broadcast":      {"240.0.0.0/4"},
		"a cloud's own":              {"168.63.129.16/32"},
	} {
		for _, p := range prefixes {
			all = append(all, special{netip.MustParsePrefix(p), what})
		}
	}
	return all
}
