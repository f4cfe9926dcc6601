package webhook

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"code.dny.dev/ssrf"
)

const maxURLLength = 2048

// CheckURL returns a [TargetError] unless a webhook may be registered for this
// target: an absolute http or https URL of printable ASCII whose host every parser
// reads alike. Users, passwords, fragments and numbers that some parsers take for
// addresses (127.1, 0x7f000001) are refused.
//
// It resolves no name and checks no address: Deliver does.
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

// IsPublic reports whether a target that CheckURL accepts is https and, if its
// host is an address, whether that address is public. It resolves no name.
func IsPublic(raw string) bool {
	u, err := parse(raw)
	if err != nil || u.Scheme != "https" {
		return false
	}
	a, err := netip.ParseAddr(u.Hostname())
	return err != nil || httpsGuard(nil).SafeAddr(a) == nil
}

// httpsGuard permits public addresses and the operator's. The library denies
// IANA's special-purpose networks; Azure's own address is not among them.
func httpsGuard(allow []netip.Prefix) *ssrf.Guardian {
	return newGuard(allow, ssrf.WithDeniedV4Prefixes(netip.MustParsePrefix("168.63.129.16/32")))
}

// httpGuard permits the operator's addresses alone.
func httpGuard(allow []netip.Prefix) *ssrf.Guardian {
	return newGuard(allow, ssrf.WithDeniedV4Prefixes(netip.MustParsePrefix("0.0.0.0/0")), ssrf.WithDeniedV6Prefixes(netip.MustParsePrefix("::/0")))
}

func newGuard(allow []netip.Prefix, deny ...ssrf.Option) *ssrf.Guardian {
	var v4, v6 []netip.Prefix
	for _, p := range allow {
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	return ssrf.New(append(deny, ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...))...)
}

// dialControl is the type of net.Dialer.Control. It runs after the name was
// resolved and before the socket connects; its error prevents the connection.
type dialControl = func(network, address string, socket syscall.RawConn) error

// control refuses with reason what guard does not permit, and then asks next, if
// there is one. The guard's own error is dropped: it holds the address.
func control(guard *ssrf.Guardian, reason string, next dialControl) dialControl {
	return func(network, address string, socket syscall.RawConn) error {
		if guard.Safe(network, address, socket) != nil {
			return &TargetError{Reason: reason}
		}
		if next == nil {
			return nil
		}
		return next(network, address, socket)
	}
}
