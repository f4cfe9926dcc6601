package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/internal/audit"
	web "github.com/payonce/payonce/internal/console"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/robustness/demo"
	"github.com/payonce/payonce/internal/robustness/harness"
)

type demoCmd struct {
	Charges  int    `default:"200" help:"How many charges to make."`
	Seed     uint64 `default:"0" help:"Repeat the run with this seed; 0 draws one."`
	Keep     bool   `xor:"keep,up" help:"Keep the services running after the audit, and print their URLs and the API key, until Ctrl-C."`
	Database string `placeholder:"URL" xor:"database,server" help:"Use this PostgreSQL server, in databases that the demo creates."`
	Break    string `placeholder:"GUARD" xor:"keep,database,running" help:"Instead, remove one guard from the database of a throw-away server, and show which checks of the audit are then violated, and what happens to a charge. list lists the guards, all removes each in turn, none removes none."`
	Running  bool   `xor:"running,up,server" help:"Use services that run already: set API_URLS, SANDBOX_URL and DATABASE_URL."`
}

// Run plays the demo. It ignores DATABASE_URL unless the services run already,
// so that a developer's own database is never touched.
func (d demoCmd) Run(ctx context.Context, c *console) error {
	played := &demo.Demo{
		Charges:  d.Charges,
		Seed:     d.Seed,
		Keep:     d.Keep,
		Database: d.Database,
		Say:      func(line string) { c.remark("%s\n", line) },
		Report:   c.showDemo,
		Now:      time.Now,
	}
	if d.Break != "" {
		return d.showGuards(ctx, c, played)
	}
	if d.Running {
		running, err := program.Load[demo.Running](program.Environ())
		if err != nil {
			return err
		}
		played.Running = &running
	} else if err := serveDemo(ctx, played); err != nil {
		return err
	}
	return played.Run(ctx)
}

// showDemo prints the audit of a demo as payonce audit prints its own.
func (c *console) showDemo(found harness.Audit) {
	var checks []audit.Check
	for _, f := range found.Checks {
		checks = append(checks, audit.Check(f))
	}
	c.show(found, func(p io.Writer) {
		table(p, checks, checkColumns)
		fmt.Fprintln(p)
		printViolations(p, checks)
		fmt.Fprintln(p, map[bool]string{true: "every promise held", false: "not every promise held"}[found.OK])
	})
}

// showGuards runs the guard lab, or lists its guards.
func (d demoCmd) showGuards(ctx context.Context, c *console, lab *demo.Demo) error {
	if d.Break == "list" {
		return showList(c, demo.Guards(), nil, "guard kind fault expected")
	}
	findings, err := lab.Break(ctx, d.Break)
	if findings == nil {
		return err
	}
	c.show(map[string]any{"ok": err == nil, "guards": findings}, func(p io.Writer) {
		for _, f := range findings {
			removed := strings.TrimSuffix(f.Kind+": "+strings.Join(f.Remove, " "), ": ")
			fmt.Fprintf(p, "\n%s: %s\n  removed    %s\n  fault      %s\n", f.Name, f.Verdict(), removed, f.Fault)
			for _, check := range f.Violated {
				fmt.Fprintf(p, "  violated   %s, for example %s\n", check.Name, oneLine(check.Examples[0]))
			}
			fmt.Fprintf(p, "  the charge %s\n", f.Charge)
		}
	})
	return err
}

// serveDemo serves the console of a demo, which logs nothing, and says its URL. It listens on
// CONSOLE_ADDR, or on another port where that one is in use.
func serveDemo(ctx context.Context, d *demo.Demo) error {
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
	for _, a := range demo.Actions() {
		actions = append(actions, web.Action{Name: a.Name, Group: a.Group, Title: a.Title, What: a.What, Shows: a.Shows})
	}
	c := web.New(web.Options{Actions: actions, Do: d.Do, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	go func() { _ = c.Serve(ctx, listener) }() // it ends with the program
	d.Show = func(ctx context.Context, url string) {
		if err := c.Run(ctx, url, postgres.Options{AllowPlaintext: true}); err != nil && ctx.Err() == nil {
			d.Say("the console shows nothing: " + err.Error())
		}
	}
	d.Say("console: http://" + listener.Addr().String())
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
