package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/payonce/payonce/internal/robustness/fleet"
)

// task is what a child process measures.
type task struct {
	By         string        `json:"by"`
	Database   string        `json:"database"`
	Postmaster int           `json:"postmaster"`
	External   string        `json:"external"`
	Workers    int           `json:"workers"`
	InFlight   int           `json:"in_flight"`
	Messages   int           `json:"messages"`
	Warm       time.Duration `json:"warm"`
	Measured   time.Duration `json:"measured"`
}

// tasks are what a child can measure.
var tasks = map[string]func(context.Context, task) (window, error){
	"payonce":   carried(payonceCarrier),
	"river":     carried(riverCarrier),
	"watermill": carried(watermillCarrier),
	"naive":     carried(naiveCarrier),
	"receive":   receiveByPayonce,
}

// childEnv makes this program a child: its value is "river", or a task.
const childEnv = "PAYONCE_BENCH_CHILD"

// child serves charges by River, or does its task and prints the window that it has measured.
// A child whose parent was killed has no database any more, and ends.
func child(ctx context.Context, log *slog.Logger, environ map[string]string) error {
	if environ[childEnv] == "river" {
		return riverService(ctx, log, environ)
	}
	var t task
	if err := json.Unmarshal([]byte(environ[childEnv]), &t); err != nil {
		return fmt.Errorf("read a task: %w", err)
	}
	w, err := tasks[t.By](ctx, t)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(w)
}

// inChild measures a task in a process and a database of its own, after it has executed
// setup there.
func (b *bench) inChild(ctx context.Context, set setting, setup string, t task, check func(url string, total int) error) (s Sample, err error) {
	url, err := b.database(ctx, false)
	if err != nil {
		return s, err
	}
	if err := execute(ctx, url, setup); err != nil {
		return s, err
	}
	t.Database, t.Postmaster = url, b.server.postmaster
	t.InFlight, t.Warm, t.Measured = set.InFlight, b.sizes.warm, b.sizes.measured
	text, err := json.Marshal(t)
	if err != nil {
		return s, fmt.Errorf("encode a task: %w", err)
	}
	w, c, err := counted(ctx, url, func() (w window, err error) {
		out, err := fleet.Run(ctx, map[string]string{childEnv: string(text)}, b.self)
		if err != nil {
			return w, err
		}
		return w, json.Unmarshal(out, &w)
	})
	if err != nil {
		return s, err
	}
	if err := b.printStatements(ctx, url); err != nil {
		return s, err
	}
	return newSample(w, c), check(url, w.Total)
}

// quiet logs errors. What else goes wrong is found in the counts.
func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}
