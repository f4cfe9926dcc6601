package main

import (
	"bufio"
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

// task is what a child process measures, as JSON on the first line of its stdin. The
// end of stdin ends it, so it does not outlive its parent. A parent of another commit
// can start it: the names of the JSON stay.
type task struct {
	By         string        `json:"by"`
	Database   string        `json:"database"`
	Postmaster int           `json:"postmaster"`
	External   string        `json:"outside"`
	Workers    int           `json:"workers"`
	InFlight   int           `json:"in_flight"`
	Messages   int           `json:"messages"`
	Held       bool          `json:"held"` // a transaction holds a snapshot
	Warm       time.Duration `json:"warm"`
	Measured   time.Duration `json:"measured"`

	Program string `json:"-"` // the bench to start; empty: this one
}

type childCmd struct{}

// tasks are what a child can do. Each writes JSON lines.
var tasks = map[string]func(context.Context, task, io.Writer) error{
	"payonce":   measured(engineByPayonce),
	"receive":   measured(receiveByPayonce),
	"claims":    measured(claimByPayonce),
	"river":     measured(engineByRiver),
	"watermill": measured(engineByWatermill),
	"naive":     measured(engineByNaive),
	"shop":      riverService,
	"janitor":   deleteExpired,
}

// measured writes the window that a task has measured.
func measured(do func(context.Context, task) (window, error)) func(context.Context, task, io.Writer) error {
	return func(ctx context.Context, t task, out io.Writer) error {
		w, err := do(ctx, t)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(w)
	}
}

// Run does the task on stdin.
func (childCmd) Run(ctx context.Context) error {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read a task: %w", err)
	}
	var t task
	if err := json.Unmarshal(line, &t); err != nil {
		return fmt.Errorf("read a task: %w", err)
	}
	do, known := tasks[t.By]
	if !known {
		return fmt.Errorf("there is no task %q", t.By)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()
	return do(ctx, t, os.Stdout)
}

// child is a process that does a task.
type child struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	lines   *json.Decoder
}

// childEnv tells the tests' binary, which starts itself too, that it is a child.
const childEnv = "PAYONCE_BENCH_CARRIES"

func startChild(ctx context.Context, t task) (c *child, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("start a child: %w", err)
		}
	}()
	program := t.Program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	c = &child{command: exec.CommandContext(ctx, program, "carry")}
	c.command.Env = append(os.Environ(), childEnv+"=1")
	c.command.Stderr = os.Stderr
	out, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.lines = json.NewDecoder(out)
	if c.stdin, err = c.command.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.command.Start(); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(c.stdin).Encode(t); err != nil {
		return nil, errors.Join(err, c.end())
	}
	return c, nil
}

// read reads the next line of the child.
func (c *child) read(v any) error {
	if err := c.lines.Decode(v); err != nil {
		return errors.Join(fmt.Errorf("read what a child writes: %w", err), c.end())
	}
	return nil
}

// end closes the child's stdin, and waits until it has ended.
func (c *child) end() error {
	_ = c.stdin.Close() // it may be gone
	if err := c.command.Wait(); err != nil {
		return fmt.Errorf("a child ended: %w", err)
	}
	return nil
}

// inChild is the window that a child measures.
func inChild(ctx context.Context, t task) (w window, err error) {
	c, err := startChild(ctx, t)
	if err != nil {
		return w, err
	}
	if err := c.read(&w); err != nil {
		return w, err
	}
	return w, c.end()
}

// quiet logs errors. What else goes wrong is found in the counts.
func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}
