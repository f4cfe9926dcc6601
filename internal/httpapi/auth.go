package httpapi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
)

// authenticate adds the merchant of the API key to requests under /v1, whether the route
// exists or not. A missing, malformed, unknown, expired or revoked key has the same answer.
// Scopes are the route's concern (needs).
func (a *API) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !strings.HasPrefix(c.Request().URL.Path, "/v1/") || isEvent(c) {
			return next(c)
		}
		given := c.Request().Header.Values(echo.HeaderAuthorization)
		if len(given) != 1 { // a proxy may have checked the other one
			return errUnauthorized
		}
		scheme, key, _ := strings.Cut(given[0], " ")
		if !strings.EqualFold(scheme, "Bearer") || key == "" {
			return errUnauthorized
		}
		if err := a.authenticateKey(c, strings.TrimSpace(key)); err != nil {
			return err
		}
		return next(c)
	}
}

// authenticateKey reads the merchant of an API key and counts the request against the merchant's rate. An API
// key that was valid lately is refused beyond that rate before it is read, so a flood of
// requests with one key costs no reads. Every other read is of the database: a key that
// is revoked or has expired is refused from the next request on.
//
// An address that has sent too many wrong keys is refused with errGuessing. That holds for no
// key that was valid lately: a guessing neighbour behind the same proxy locks no other caller out.
func (a *API) authenticateKey(c echo.Context, apiKey string) error {
	from := network(exchangeOf(c).client)
	id := sha256.Sum256([]byte(apiKey))
	known, recent := a.recent.Get(id) // no merchant has the id ""
	read := a.readOther
	if recent {
		read = a.readRecent
	}
	switch {
	case recent && !a.limits.merchants.allow(known, a.Now()):
		return errRate
	case !recent && a.limits.guesses.used(from, a.Now()):
		return errGuessing
	}
	var m merchants.Merchant
	err := a.limits.work.within(known, 1, func() (err error) {
		m, err = read(c.Request().Context(), apiKey)
		return err
	})
	if errors.Is(err, merchants.ErrUnauthorized) {
		a.recent.Remove(id)
		a.limits.guesses.allow(from, a.Now())
	}
	if err != nil {
		return err
	}
	a.recent.Add(id, m.ID)
	if !recent && !a.limits.merchants.allow(m.ID, a.Now()) {
		return errRate
	}
	m.OneChargePerOrder = m.OneChargePerOrder || a.OneChargePerOrder
	e := exchangeOf(c)
	e.merchant, e.keyID = m, merchants.Prefix(apiKey)
	return nil
}

func merchantOf(c echo.Context) merchants.Merchant { return exchangeOf(c).merchant }

// tenant is the database as the caller's merchant sees it.
func (a *API) tenant(c echo.Context) *postgres.DB { return a.DB.Tenant(merchantOf(c).ID) }

// needs refuses a request whose API key lacks the scope of the route, if that has one,
// before the body is read and before any stored answer counts: the refusal is not stored
// and leaves the key free.
func needs(scope merchants.Scope) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if scope == "" || merchantOf(c).May(scope) {
				return next(c)
			}
			c.Response().Header().Set(echo.HeaderWWWAuthenticate, fmt.Sprintf("Bearer error=%q, scope=%q", "insufficient_scope", scope))
			return errForbidden.because("the API key lacks the scope " + string(scope) + ": send the request with one that has it")
		}
	}
}

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
