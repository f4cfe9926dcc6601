package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"time"
)

// order is what a process that carries is told, as JSON on its first line of
// stdin. The end of stdin ends it: so it does not outlive who started it.
type order struct {
	By         string        `json:"by"`
	Database   string        `json:"database"`
	Postmaster int           `json:"postmaster"`
	Outside    string        `json:"outside"`
	Workers    int           `json:"workers"`
	InFlight   int           `json:"in_flight"`
	Messages   int           `json:"messages"`
	Warm       time.Duration `json:"warm"`
	Measured   time.Duration `json:"measured"`

	Program string `json:"-"` // the bench that carries; empty: this one
}

type carryCmd struct{}

// carriers are what carryCmd can be told to be. Each prints JSON lines.
func carriers() map[string]func(context.Context, order, io.Writer) error {
	return map[string]func(context.Context, order, io.Writer) error{
		"payonce":   measured(carryByPayonce),
		"receive":   measured(receiveByPayonce),
		"claims":    measured(claimByPayonce),
		"river":     measured(carryByRiver),
		"watermill": measured(carryByWatermill),
		"naive":     measured(carryByNaive),
		"shop":      shopByRiver,
		"janitor":   sweepAsWorker,
	}
}

// measured prints the window that a carrier has measured by itself.
func measured(carry func(context.Context, order) (window, error)) func(context.Context, order, io.Writer) error {
	return func(ctx context.Context, o order, out io.Writer) error {
		w, err := carry(ctx, o)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(w)
	}
}

// Run carries what stdin says.
func (carryCmd) Run(ctx context.Context) error {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read an order: %w", err)
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return fmt.Errorf("read an order: %w", err)
	}
	carry, known := carriers()[o.By]
	if !known {
		return fmt.Errorf("nobody carries by %q", o.By)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()
	return carry(ctx, o, os.Stdout)
}

// carrier is a process that carries.
type carrier struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	lines   *json.Decoder
}

func startCarrier(ctx context.Context, o order) (*carrier, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start a carrier: %w", err)
	}
	c := &carrier{command: exec.CommandContext(ctx, cmp.Or(o.Program, program), "carry")}
	c.command.Env = append(os.Environ(), carrierEnv+"=1")
	c.command.Stderr = os.Stderr
	out, err := c.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start a carrier: %w", err)
	}
	c.lines = json.NewDecoder(out)
	if c.stdin, err = c.command.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start a carrier: %w", err)
	}
	if err := c.command.Start(); err != nil {
		return nil, fmt.Errorf("start a carrier: %w", err)
	}
	if err := json.NewEncoder(c.stdin).Encode(o); err != nil {
		return nil, errors.Join(fmt.Errorf("start a carrier: %w", err), c.end())
	}
	return c, nil
}

// carrierEnv tells the tests' binary, which starts itself too, what it is.
const carrierEnv = "PAYONCE_BENCH_CARRIES"

// read reads the next line of the carrier.
func (c *carrier) read(v any) error {
	if err := c.lines.Decode(v); err != nil {
		return errors.Join(fmt.Errorf("read what the carrier says: %w", err), c.end())
	}
	return nil
}

// end lets the carrier finish, and waits for it.
func (c *carrier) end() error {
	_ = c.stdin.Close() // it may be gone
	if err := c.command.Wait(); err != nil {
		return fmt.Errorf("the carrier ended: %w", err)
	}
	return nil
}

// carried is the window of a carrier that measures by itself.
func carried(ctx context.Context, o order) (w window, err error) {
	c, err := startCarrier(ctx, o)
	if err != nil {
		return w, err
	}
	if err := c.read(&w); err != nil {
		return w, err
	}
	return w, c.end()
}

// quiet logs what is wrong, and nothing else.
func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// quietUntil is quiet until ctx ends: that somebody was stopped is nothing wrong.
func quietUntil(ctx context.Context) *slog.Logger {
	return slog.New(stopped{Handler: quiet().Handler(), by: ctx.Done()})
}

type stopped struct {
	slog.Handler

	by <-chan struct{}
}

func (s stopped) Enabled(ctx context.Context, level slog.Level) bool {
	select {
	case <-s.by:
		return false
	default:
		return s.Handler.Enabled(ctx, level)
	}
}

func (s stopped) WithAttrs(attrs []slog.Attr) slog.Handler {
	return stopped{Handler: s.Handler.WithAttrs(attrs), by: s.by}
}

func (s stopped) WithGroup(name string) slog.Handler {
	return stopped{Handler: s.Handler.WithGroup(name), by: s.by}
}
