package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// The address and the API key for visitors are those of the README. Another address is taken where
// this one is in use. The sandbox takes any key.
const (
	visitorsAddress = "127.0.0.1:8080"
	visitorsKey     = "sk_test_demo"
)

const (
	startTimeout   = 2 * time.Minute        // a program that ends is noticed at once
	killPause      = 150 * time.Millisecond // as a supervisor needs
	programsOfKind = 2
)

// open opens what the demo runs on, with this stock. What it has opened when it returns an error is for close too.
func (d *Demo) open(ctx context.Context, stock ...string) (err error) {
	if d.Running != nil {
		return d.join(ctx)
	}
	d.killed = "killed"
	folder, err := local.NewDir(os.TempDir(), "payonce-demo-")
	if err != nil {
		return err
	}
	d.ends = append(d.ends, func(context.Context) error { return folder.Close() })
	d.world.Log = folder.Path
	if d.world.Payonce == "" { // --break has built them
		d.say("building api, worker, sandbox and payonce")
		if d.world.Binaries, err = harness.Build(ctx, folder.Path); err != nil {
			return err
		}
	}
	if err := d.openDatabase(ctx); err != nil {
		return err
	}
	d.say("starting 2 apis, 2 workers and the sandbox")
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	d.world.Secrets = harness.Secrets{
		API:      visitorsKey,
		Provider: visitorsKey,
		Events:   "whsec_" + rand.Text(),
		Shop:     "whsec_" + rand.Text() + rand.Text(), // two are base64
	}
	d.world.Env = func(name string, env map[string]string) {
		if name == "api-1" && d.Keep && isFree(ctx, visitorsAddress) {
			env["HTTP_ADDR"] = visitorsAddress
		}
	}
	d.ends = append(d.ends, d.world.Stop)
	setup := harness.Setup{APIs: programsOfKind, Workers: programsOfKind, Merchant: "demo", Stock: stock, Events: true}
	if err := d.world.Up(ctx, setup); err != nil {
		return err
	}
	d.Client, d.sandbox = d.world.Client(), harness.Sandbox(d.world.Sandbox.URL())
	return nil
}

// close drains the programs, then removes the database and the folder, also when ctx has ended.
func (d *Demo) close(ctx context.Context) (err error) {
	ctx, cancel := closing(ctx)
	defer cancel()
	for _, end := range slices.Backward(d.ends) {
		err = errors.Join(err, end(ctx))
	}
	return err
}

// openDatabase makes a database on the server given, or starts a server: with every commit
// forced to disk, as the programs demand, or in memory for the guard lab.
func (d *Demo) openDatabase(ctx context.Context) (err error) {
	if d.Database == "" {
		d.say("starting PostgreSQL")
		if d.server, err = local.Start(ctx, local.Options{Fsync: true, InMemory: d.lab}); err != nil {
			return err
		}
		d.ends = append(d.ends, func(context.Context) error { return d.server.Close() }) //nolint:contextcheck // Close bounds itself
		d.world.Service = d.server.URL("postgres")
		return d.openPool(ctx)
	}
	d.say("making a database on the server given")
	name := "payonce_demo_" + newRunName()
	if d.world.Service, err = inDatabase(d.Database, name); err != nil {
		return err
	}
	server, err := pgxpool.New(ctx, d.Database)
	if err != nil {
		return fmt.Errorf("read the URL of the demo's server: %w", err)
	}
	d.ends = append(d.ends, func(ctx context.Context) error {
		defer server.Close()
		_, err := server.Exec(ctx, "drop database if exists "+name+" with (force)")
		return err
	})
	if _, err := server.Exec(ctx, "create database "+name); err != nil {
		return fmt.Errorf("make the demo's database: %w", err)
	}
	return d.openPool(ctx)
}

func (d *Demo) openPool(ctx context.Context) (err error) {
	if d.db, err = pgxpool.New(ctx, d.world.Service); err == nil {
		d.ends = append(d.ends, func(context.Context) error { d.db.Close(); return nil })
	}
	return err
}

// inDatabase is the same server's URL with another database.
func inDatabase(server, name string) (string, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return "", errors.New("--database must be a URL as postgres://user@host") // not what it is: that may hold a password
	}
	u.Path = "/" + name
	query := u.Query()
	query.Del("dbname")
	u.RawQuery = query.Encode()
	return u.String(), nil
}

func isFree(ctx context.Context, address string) bool {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	return err == nil && listener.Close() == nil
}

// await waits until a query returns true.
func (d *Demo) await(ctx context.Context, sql string, args ...any) error {
	for {
		var yes bool
		if err := d.db.QueryRow(ctx, sql, args...).Scan(&yes); err != nil || yes {
			return err
		}
		if err := harness.Wait(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("wait for %s %v: %w", sql, args, err)
		}
	}
}

const isQuiet = `
select not exists (select from inbox where status in ('pending', 'running') and (waits = 0 or $1))
   and not exists (select from outbox)
   and not exists (
         select
           from ledger_events e
           join followers f
             on f.name = 'balances'
          where (e.txid, e.position) > (f.txid, f.position))`

// quiet waits until nothing is left to do, with or without what waits for an external service.
func (d *Demo) quiet(ctx context.Context, waiting bool) error {
	return d.await(ctx, isQuiet, waiting)
}

// introduction is what a visitor needs to look around.
func (d *Demo) introduction() string {
	var text strings.Builder
	line := func(name, value string) { fmt.Fprintf(&text, "  %-10s %s\n", name, value) }
	for _, p := range d.world.Processes() {
		line(p.Name(), p.URL())
	}
	line("contract", d.world.APIs[0].URL()+"/openapi.yaml")
	line("books", d.world.Sandbox.URL()+"/books")
	line("database", d.world.Service)
	line("logs", d.world.Log)
	line("API key", visitorsKey)
	return text.String() + "everything stays up until Ctrl-C"
}

// Running is where services run already, for a demo that starts none: in
// containers, where a program cannot kill another. The services' database sessions
// are cut instead. The merchant that charges has the API key sk_test_demo.
type Running struct {
	// URLs of the apis, separated by commas.
	APIURLs []string `env:"API_URLS,required"`
	// URL of the sandbox.
	SandboxURL string `env:"SANDBOX_URL,required"`
	// Connection string of payonce's PostgreSQL database.
	DatabaseURL string `env:"DATABASE_URL,required"`
}

// join takes services that run already.
func (d *Demo) join(ctx context.Context) (err error) {
	if d.world.Payonce, err = os.Executable(); err != nil {
		return err
	}
	d.killed = "cut off the database"
	at := d.Running
	d.world.Service, d.world.Provider, d.world.Secrets.Provider = at.DatabaseURL, at.SandboxURL, visitorsKey
	d.Client, d.sandbox = harness.NewClient(visitorsKey, at.APIURLs...), harness.Sandbox(at.SandboxURL)
	return d.openPool(ctx)
}
