package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	web "github.com/payonce/payonce/internal/console"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/robustness/demo"
)

type consoleCmd struct{}

// consoleSettings are the environment of payonce console.
type consoleSettings struct {
	// For payonce console: connection string of payonce's PostgreSQL database. The user acts as the
	// role payonce_console, so it must be a member of it.
	DatabaseURL program.Secret `env:"DATABASE_URL,required,notEmpty"`
	// For payonce console: permits a database user that is a superuser, owns the tables or may act
	// as another role than payonce_console.
	AllowPrivilegedDatabaseUser bool `env:"ALLOW_PRIVILEGED_DATABASE_USER"`
	// For payonce console: permits a database over a network without TLS that verifies the server.
	AllowPlaintext bool `env:"ALLOW_PLAINTEXT"`

	web.Settings
}

// Run serves the console until ctx ends.
func (consoleCmd) Run(ctx context.Context) error {
	log := program.Logger(os.Stderr, "console", slog.LevelInfo)
	s, err := program.Settings[consoleSettings](log, program.Environ())
	if err != nil {
		return err
	}
	listener, err := program.Listen(ctx, "CONSOLE_ADDR", s.Addr)
	if err != nil {
		return err
	}
	c := web.New(web.Options{Log: log, Now: time.Now})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Serve(ctx, listener) })
	g.Go(func() error {
		return c.Run(ctx, s.DatabaseURL.Reveal(), postgres.Options{RefusePrivileged: !s.AllowPrivilegedDatabaseUser, AllowPlaintext: s.AllowPlaintext})
	})
	return g.Wait()
}

// serveDemo serves the console of a demo, which logs nothing. It listens on CONSOLE_ADDR, or on
// another port where that one is in use.
func serveDemo(ctx context.Context, o *demo.Options) error {
	s, err := program.Load[web.Settings](program.Environ())
	if err != nil {
		return err
	}
	listener, err := program.Listen(ctx, "CONSOLE_ADDR", s.Addr)
	if err != nil {
		if listener, err = program.Listen(ctx, "CONSOLE_ADDR", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	var actions []web.Action
	for _, a := range o.Lab.Actions() {
		actions = append(actions, web.Action{Name: a.Name, Group: a.Group, Title: a.Title, What: a.What, Shows: a.Shows})
	}
	c := web.New(web.Options{Actions: actions, Do: o.Lab.Do, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	go func() { _ = c.Serve(ctx, listener) }() // it ends with the program
	o.ConsoleURL = "http://" + listener.Addr().String()
	o.Show = func(ctx context.Context, url string) error {
		return c.Run(ctx, url, postgres.Options{AllowPlaintext: true})
	}
	return nil
}
