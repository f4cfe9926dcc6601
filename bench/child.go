package main

import (
	"bufio"
	"context"
	"encoding/json"
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
}

type childCmd struct{}

// tasks are what a child can measure.
var tasks = map[string]func(context.Context, task) (window, error){
	"payonce":   carried(payonceCarrier),
	"river":     carried(riverCarrier),
	"watermill": carried(watermillCarrier),
	"naive":     carried(naiveCarrier),
	"receive":   receiveByPayonce,
	"claims":    claimByPayonce,
}

// Run does the task on stdin, and writes the window that it has measured.
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
	w, err := do(ctx, t)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(w)
}

// childEnv tells the tests' binary, which starts itself too, that it is a child.
const childEnv = "PAYONCE_BENCH_CARRIES"

// inChild measures a task in a process and a database of its own, after it has executed
// setup there.
func (b *bench) inChild(ctx context.Context, set setting, setup string, t task, check func(url string, total int) error) (s Sample, err error) {
	url, err := b.database(ctx, set.Base)
	if err != nil {
		return s, err
	}
	if err := execute(ctx, url, setup); err != nil {
		return s, err
	}
	t.Database, t.Postmaster = url, b.server.postmaster
	t.InFlight, t.Warm, t.Measured = set.InFlight, b.sizes.warm, b.sizes.measured
	w, c, err := counted(ctx, url, func() (window, error) { return carry(ctx, b.trees[set.Base]["bench"], t) })
	if err != nil {
		return s, err
	}
	if err := b.printStatements(ctx, url); err != nil {
		return s, err
	}
	return newSample(w, c), check(url, w.Total)
}

// carry lets a bench's child do a task.
func carry(ctx context.Context, program string, t task) (w window, err error) {
	line, err := json.Marshal(t)
	if err != nil {
		return w, fmt.Errorf("encode a task: %w", err)
	}
	command := exec.CommandContext(ctx, program, "carry")
	command.Env = append(os.Environ(), childEnv+"=1")
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe() // stays open until the child ends
	if err != nil {
		return w, err
	}
	go func() { _, _ = stdin.Write(append(line, '\n')) }() // a child that is gone has said why
	out, err := command.Output()
	if err != nil {
		return w, fmt.Errorf("a child failed: %w", err)
	}
	return w, json.Unmarshal(out, &w)
}

// quiet logs errors. What else goes wrong is found in the counts.
func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}
