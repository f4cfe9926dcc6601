package webhook

import (
	"cmp"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

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
	refuse := func(reason string) (*url.URL, error) { return nil, &TargetError{Reason: reason} }
	if len(raw) > maxURLLength || !visible(raw) {
		return refuse("the target is longer than 2048 characters or not printable ASCII")
	}
	u, err := url.Parse(raw)
	if err != nil {
		return refuse("the target is not a URL")
	}
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "443"), 10, 16)
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return refuse("the target begins with neither http:// nor https://")
	case u.User != nil:
		return refuse("the target holds a user or a password")
	case u.Fragment != "" || strings.HasSuffix(raw, "#"):
		return refuse("the target holds a fragment")
	case !isHost(u.Hostname()):
		return refuse("the target's host is neither a name nor an address that every parser reads alike")
	case err != nil || port == 0 || strings.HasSuffix(u.Host, ":"):
		return refuse("the target's port is not between 1 and 65535")
	}
	return u, nil
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?$`)

// isHost refuses addresses with a zone or of IPv4 within IPv6, and numbers that some parsers take for addresses.
func isHost(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return !a.Is4In6() && a.Zone() == ""
	}
	name := strings.TrimSuffix(host, ".")
	last := strings.ToLower(name[strings.LastIndexByte(name, '.')+1:])
	return hostName.MatchString(host) && len(name) <= 253 && strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(last, "0x")
}

func visible(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < '!' || r > '~' }) < 0
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
