package main

import (
	"context"
	"os"
	"time"

	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/robustness/demo"
)

type demoCmd struct {
	Charges  int    `default:"200" help:"How many charges to make."`
	Seed     uint64 `default:"0" help:"Repeat the run with this seed; 0 draws one."`
	Keep     bool   `help:"Stay up after the audit, and print the URLs and the API key, until Ctrl-C."`
	JSON     bool   `name:"json" help:"Print the audit as JSON on stdout and everything else on stderr."`
	Database string `placeholder:"URL" help:"Use this PostgreSQL server, in databases of the demo's own."`
	Running  bool   `help:"Play on services that run already: set API_URLS, SANDBOX_URL, API_KEY, DATABASE_URL, STRIPE_SECRET_KEY and STRIPE_API_BASE."`
}

// Run plays the demo. It ignores DATABASE_URL unless the services run already,
// so that a developer's own database is never touched.
func (c *demoCmd) Run(ctx context.Context) error {
	o := demo.Options{
		Charges:  c.Charges,
		Seed:     c.Seed,
		Keep:     c.Keep,
		JSON:     c.JSON,
		Database: c.Database,
		Stdout:   os.Stdout,
		Stderr:   os.Stderr,
		Now:      time.Now,
	}
	if c.Running {
		running, err := program.Load[demo.Running](program.Environ())
		if err != nil {
			return err
		}
		o.Running = &running
	}
	return demo.Run(ctx, o)
}
