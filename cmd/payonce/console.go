package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	web "github.com/payonce/payonce/internal/console"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/robustness/demo"
)

type consoleCmd struct{}

// consoleSettings are the console's environment.
type consoleSettings struct {
	// For payonce console: connection string of payonce's PostgreSQL database. The user acts as the
	// role payonce_console, so it must be a member of it.
	DatabaseURL program.Secret `env:"DATABASE_URL,required,notEmpty"`
	// For payonce console: permits a database user that is a superuser, owns the tables or may act
	// as another role than payonce_console.
	AllowPrivilegedDatabaseUser bool `env:"ALLOW_PRIVILEGED_DATABASE_USER"`
	// As above, and permits the console on an address of a network without TLS.
	AllowPlaintext bool `env:"ALLOW_PLAINTEXT"`
	// key: an operator signs in with a key of scope operator. open: it asks for no key, for a demo
	// on a machine of your own.
	Access string `env:"CONSOLE_ACCESS" envDefault:"key"`
	// For payonce console: networks of the proxies before it, which end TLS, separated by commas. The
	// client is the last address in X-Forwarded-For that is in none of them, and the cookie is Secure.
	// Empty: the address of the connection.
	TrustedProxies []netip.Prefix `env:"TRUSTED_PROXIES"`

	ConsoleAddress
}

// ConsoleAddress is where the console is served. The reader of settings fills exported structs alone.
type ConsoleAddress struct {
	// Address on which the console listens. payonce demo takes another port where this one is in
	// use.
	Addr string `env:"CONSOLE_ADDR" envDefault:"127.0.0.1:8088"`
	// Hosts under which browsers may read the console, separated by commas, without a port.
	Hosts []string `env:"CONSOLE_HOSTS" envDefault:"localhost,127.0.0.1,::1"`
	// File with the certificate, in PEM, by which the console serves TLS. Empty: HTTP without TLS.
	TLSCertFile string `env:"CONSOLE_TLS_CERT_FILE"`
	// File with the key of that certificate, in PEM.
	TLSKeyFile string `env:"CONSOLE_TLS_KEY_FILE"`
	// How many wrong keys one address may send to the console at once. Then it may send ten in a
	// minute. 0: any number.
	AuthenticationFailures int `env:"CONSOLE_AUTHENTICATION_FAILURES" envDefault:"10"`
}

// Check refuses settings by which keys could be read on the way.
func (s consoleSettings) Check() error {
	switch {
	case (s.TLSCertFile == "") != (s.TLSKeyFile == ""):
		return errors.New("one of CONSOLE_TLS_CERT_FILE and CONSOLE_TLS_KEY_FILE is set: set both, or none")
	case s.Access != "key" && s.Access != "open":
		return fmt.Errorf("CONSOLE_ACCESS is %q: set it to one of key, open", s.Access)
	case s.AuthenticationFailures < 0:
		return fmt.Errorf("CONSOLE_AUTHENTICATION_FAILURES is %d: set it to a number of wrong keys, or to 0 for any number", s.AuthenticationFailures)
	case !s.local() && !s.AllowPlaintext && (s.TLSCertFile == "" || s.Access == "open"):
		return fmt.Errorf("CONSOLE_ADDR %s is reachable over a network without TLS, or without a key: set CONSOLE_TLS_CERT_FILE and CONSOLE_TLS_KEY_FILE, or ALLOW_PLAINTEXT=1 where the network is your own", s.Addr)
	}
	return nil
}

// local reports whether the console is reached from this machine alone.
func (s ConsoleAddress) local() bool {
	host, _, _ := net.SplitHostPort(s.Addr)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (s ConsoleAddress) options(log *slog.Logger) web.Options {
	return web.Options{Hosts: s.Hosts, TLS: s.TLSCertFile != "", Guesses: s.AuthenticationFailures, Log: log, Now: time.Now}
}

// Run serves the console until ctx ends.
func (consoleCmd) Run(ctx context.Context) error {
	log := program.Logger(os.Stderr, "console", slog.LevelInfo)
	s, err := program.Settings[consoleSettings](log, program.Environ())
	if err != nil {
		return err
	}
	o := s.options(log)
	o.Open, o.Proxies, o.TLS = s.Access == "open", s.TrustedProxies, o.TLS || len(s.TrustedProxies) > 0
	c := web.New(o)
	server := c.Server()
	if s.TLSCertFile != "" {
		if server.TLSConfig, err = program.TLS(log, s.TLSCertFile, s.TLSKeyFile); err != nil {
			return err
		}
	}
	listener, err := program.Listen(ctx, "CONSOLE_ADDR", s.Addr)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return program.ServeListener(ctx, log, listener, server) })
	g.Go(func() error {
		return c.Run(ctx, s.DatabaseURL.Reveal(), postgres.Options{RefusePrivileged: !s.AllowPrivilegedDatabaseUser, AllowPlaintext: s.AllowPlaintext})
	})
	return g.Wait()
}

// serveDemo serves the console of a demo: it asks for no key and logs nothing. It listens on
// CONSOLE_ADDR, or on another port where that one is in use.
func serveDemo(ctx context.Context, o *demo.Options) error {
	s, err := program.Load[ConsoleAddress](program.Environ())
	if err != nil {
		return err
	}
	if !s.local() {
		return fmt.Errorf("CONSOLE_ADDR is %s: the demo's console asks for no key, so it listens on a loopback address alone", s.Addr)
	}
	listener, err := program.Listen(ctx, "CONSOLE_ADDR", s.Addr)
	if err != nil {
		if listener, err = program.Listen(ctx, "CONSOLE_ADDR", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	options := s.options(slog.New(slog.DiscardHandler))
	options.Open, options.Lab = true, crashLab{o.Lab}
	c := web.New(options)
	go func() { _ = program.ServeListener(ctx, options.Log, listener, c.Server()) }() // it ends with the program
	o.ConsoleURL = "http://" + listener.Addr().String()
	o.Show = func(ctx context.Context, url string) error {
		return c.Run(ctx, url, postgres.Options{AllowPlaintext: true})
	}
	return nil
}

// crashLab is the lab of a demo, as the console has it.
type crashLab struct{ *demo.Lab }

func (l crashLab) Actions() (actions []web.Action) {
	for _, a := range l.Lab.Actions() {
		actions = append(actions, web.Action{Name: a.Name, Group: a.Group, Title: a.Title, What: a.What, Shows: a.Shows})
	}
	return actions
}
