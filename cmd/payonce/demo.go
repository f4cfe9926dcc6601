package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	web "github.com/payonce/payonce/internal/console"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/robustness/demo"
)

type demoCmd struct {
	Charges  int    `default:"200" help:"How many charges to make."`
	Seed     uint64 `default:"0" help:"Repeat the run with this seed; 0 draws one."`
	Keep     bool   `xor:"keep,up" help:"Keep the services running after the audit, and print their URLs and the API key, until Ctrl-C."`
	Database string `placeholder:"URL" xor:"database,server" help:"Use this PostgreSQL server, in databases that the demo creates."`
	Break    string `placeholder:"GUARD" xor:"keep,database,running" help:"Instead, remove one guard from the database of a throw-away server, and show which checks of the audit are then violated, and what happens to a charge. list lists the guards, all removes each in turn, none removes none."`
	Running  bool   `xor:"running,up,server" help:"Use services that run already: set API_URLS, SANDBOX_URL, API_KEY, DATABASE_URL, STRIPE_SECRET_KEY and STRIPE_API_BASE."`
}

// Run plays the demo. It ignores DATABASE_URL unless the services run already,
// so that a developer's own database is never touched.
func (d demoCmd) Run(ctx context.Context, c *console) error {
	o := demo.Options{
		Charges:  d.Charges,
		Seed:     d.Seed,
		Keep:     d.Keep,
		JSON:     c.json,
		Database: d.Database,
		Stdout:   os.Stdout,
		Say:      func(line string) { fmt.Fprintln(os.Stderr, line) },
		Lab:      &demo.Lab{},
		Commands: os.Stdin,
		Now:      time.Now,
	}
	if d.Break != "" {
		return demo.Break(ctx, o, d.Break)
	}
	if d.Running {
		running, err := program.Load[demo.Running](program.Environ())
		if err != nil {
			return err
		}
		o.Running, o.ConsoleURL = &running, running.ConsoleURL
	} else if err := serveDemo(ctx, &o); err != nil {
		return err
	}
	return demo.Run(ctx, o)
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

type consoleCmd struct{}

// consoleSettings are the environment of payonce console.
type consoleSettings struct {
	environment
	web.Settings

	// For payonce console: permits a database user that is a superuser, owns the tables or may act
	// as another role than payonce_console.
	AllowPrivilegedDatabaseUser bool `env:"ALLOW_PRIVILEGED_DATABASE_USER"`
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
