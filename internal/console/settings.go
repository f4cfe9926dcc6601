package console

import (
	"fmt"
	"net/netip"

	"github.com/payonce/payonce/internal/program"
)

// Settings are read from the environment.
type Settings struct {
	// Address on which the console listens. payonce demo takes another port where this one is in
	// use.
	Addr string `env:"CONSOLE_ADDR" envDefault:"127.0.0.1:8088"`
	// Hosts under which browsers may read the console, separated by commas, without a port.
	Hosts []string `env:"CONSOLE_HOSTS" envDefault:"localhost,127.0.0.1,::1"`
	// key: an operator signs in with a key of scope operator. open: it asks for no key, as in a demo
	// on a machine of your own.
	Access string `env:"CONSOLE_ACCESS" envDefault:"key"`
	// Networks of the proxies before the console, which end TLS, separated by commas. The client is
	// the last address in X-Forwarded-For that is in none of them, and the cookie is Secure. Empty:
	// the address of the connection.
	TrustedProxies []netip.Prefix `env:"TRUSTED_PROXIES"`
	// How many wrong keys one address may send to the console at once. Then it may send ten in a
	// minute. 0: any number.
	AuthenticationFailures int `env:"CONSOLE_AUTHENTICATION_FAILURES" envDefault:"10"`
	// Permits the console on an address of a network without TLS, and a database over one.
	AllowPlaintext bool `env:"ALLOW_PLAINTEXT"`
}

// Check refuses settings by which keys could be read on the way.
func (s Settings) Check() error {
	switch {
	case s.Access != "key" && s.Access != "open":
		return fmt.Errorf("CONSOLE_ACCESS is %q: set it to one of key, open", s.Access)
	case s.AuthenticationFailures < 0:
		return fmt.Errorf("CONSOLE_AUTHENTICATION_FAILURES is %d: set it to a number of wrong keys, or to 0 for any number", s.AuthenticationFailures)
	case !program.Local(s.Addr) && !s.AllowPlaintext:
		return fmt.Errorf("CONSOLE_ADDR %s is reachable over a network without TLS: set a loopback address, or ALLOW_PLAINTEXT=1 where the network is your own", s.Addr)
	}
	return nil
}

// tls reports whether browsers reach the console by TLS alone, which a proxy ends.
func (s Settings) tls() bool { return len(s.TrustedProxies) > 0 }
