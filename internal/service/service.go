// Package service is what the api and the worker have in common beyond every program: the database
// with the doorbell of its commits, metrics and traces, readiness, and how they end. It is no part of
// program, which the sandbox links, and that has no database.
package service

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/upkeep"
	"github.com/payonce/payonce/outbox/doorbell"
)

// Prefix is how the names of the programs' sessions begin.
const Prefix = "payonce-"

// Options are in what one program differs from the other.
type Options struct {
	Name        string                  // of the program
	DatabaseURL program.Secret          // of payonce's database
	Settings    program.Service         // those that both have
	Role        postgres.Role           // of the sessions
	LockTimeout time.Duration           // as in postgres.Options
	Writes      []groupcommit.Statement // of this program alone that may share a commit, see Statements
	Handles     []string                // receivers whose messages the program itself handles
	Now         func() time.Time
}

// Service is a program that runs. What its database needs is nil until Open.
type Service struct {
	Log     *slog.Logger
	Traces  *telemetry.Traces
	Metrics *telemetry.Registry
	DB      *postgres.DB
	Bell    *doorbell.Doorbell
	Ready   *program.Readiness

	options Options
	lasting context.Context // ends after the last commit of the drain
	ringing sync.WaitGroup
}

// Run lets work go on until ctx ends, and closes what it has opened.
func Run(ctx context.Context, log *slog.Logger, environ map[string]string, o Options, work func(context.Context, *Service) error) error {
	settings, err := program.Load[telemetry.TraceSettings](environ)
	if err != nil {
		return err
	}
	traces, err := telemetry.OpenTraces(ctx, log, Prefix+o.Name, settings)
	if err != nil {
		return err
	}
	defer traces.Close(ctx)
	log = traces.Log(log)
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	s := &Service{
		Log: log, Traces: traces, Metrics: telemetry.NewRegistry(log), Bell: NewBell(log), options: o, lasting: lasting,
	}
	defer func() {
		end()
		s.ringing.Wait()
		if s.DB != nil {
			s.Ready.Close()
			s.DB.Close()
		}
	}()
	return work(ctx, s)
}

// Open opens the database, whose commits ring the bell.
func (s *Service) Open(ctx context.Context) error {
	o := s.options
	db, err := program.Open(ctx, s.Log, o.DatabaseURL.Reveal(), postgres.Options{
		Application: Prefix + o.Name + " " + program.Instance(), Role: o.Role, RefusePrivileged: !o.Settings.AllowPrivilegedDatabaseUser,
		MaxConns: o.Settings.DatabaseConnections, AllowPlaintext: o.Settings.AllowPlaintext, ExpectReplication: o.Settings.ExpectReplication,
		CheckSession: upkeep.CheckSession(), LockTimeout: o.LockTimeout, Tracer: s.Traces.Statements(),
		Writes: Statements(o.Writes...), Committed: Committed(s.Bell, o.Handles...),
	})
	if err != nil {
		return err
	}
	s.DB, s.Ready = db, program.NewReadiness(s.lasting, db, s.options.Now) //nolint:contextcheck // it lasts longer than ctx
	s.Metrics.Database(db)
	return nil
}

// Beside returns the metrics that HTTP_ADDR serves: nil where METRICS_ADDR is set.
func (s *Service) Beside() http.Handler {
	if s.options.Settings.MetricsAddr != "" {
		return nil
	}
	return s.Metrics.Handler()
}

// Serve listens for the bells that work has of Bell, serves HTTP and METRICS_ADDR, and works beside
// that, until ctx ends or one of them fails.
func (s *Service) Serve(ctx context.Context, addr string, server *http.Server, beside ...func(ctx context.Context) error) error {
	s.ringing.Go(func() { s.Bell.Run(s.lasting, s.DB.Pool()) })
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return program.ServeMetrics(ctx, s.Log, s.options.Settings.MetricsAddr, s.Metrics.Handler())
	})
	g.Go(func() error { return program.Serve(ctx, s.Log, addr, server) })
	for _, work := range beside {
		g.Go(func() error { return work(ctx) })
	}
	return g.Wait()
}
