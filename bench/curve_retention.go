package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/payonce/payonce/internal/app/worker"
	"github.com/payonce/payonce/internal/postgres"
)

// retentionSenders leave the machine some room, so that what is seen is not the
// queue alone.
const retentionSenders = 16

// alongRetention accepts charges by turns with the janitor at work and without,
// until everything that has expired is gone. The two are two points of one line,
// and each turn is a point of another.
func alongRetention(ctx context.Context, c *curving) error {
	name := fmt.Sprintf("%d rows expired", c.extent.Expired)
	return c.at(ctx, name, retentionSenders, func(w *world) ([]Point, error) {
		gone, err := w.expire(ctx, c.extent.Expired)
		if err != nil {
			return nil, err
		}
		before, err := w.holdings(ctx)
		if err != nil {
			return nil, err
		}
		before.messages -= gone.messages
		points, err := w.besideJanitor(ctx, c.extent)
		if err != nil {
			return nil, err
		}
		return points, errors.Join(w.checkAcceptedSince(ctx, before, w.flow.ended), w.checkSwept(ctx, gone))
	})
}

// turns are what was accepted in some of them.
type turns struct {
	took    []time.Duration // each charge
	seen    window
	sofar   int      // rows that the janitor has swept
	memory  Resident // of the janitor
	byTurns []Point
}

func (t *turns) add(by string, took []time.Duration, seen window, swept int) {
	t.took, t.sofar = append(t.took, took...), t.sofar+swept
	t.seen.Done += seen.Done
	t.seen.Seconds += seen.Seconds
	t.seen.Used.Programs += seen.Used.Programs
	t.seen.Used.Database += seen.Used.Database
	seen.latencies(took)
	t.byTurns = append(t.byTurns, Point{X: float64(t.sofar), By: by, Sample: newSample(seen, counters{}), Swept: swept, Part: true})
}

func (t *turns) point(swept int) Point {
	t.seen.latencies(t.took)
	return Point{X: float64(swept), By: "accept", Sample: newSample(t.seen, counters{}), Swept: swept, Worker: t.memory}
}

// besideJanitor ends with the turn in which the last row goes.
func (w *world) besideJanitor(ctx context.Context, e extent) (points []Point, err error) {
	api, err := w.api(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, finish(ctx, api)) }()
	l := w.acceptingOnly([]string{api.URL()}, nil)
	l.senders, l.measured = retentionSenders, e.Turn
	var without, with turns
	look := residents(api.PID())
	err = w.flow.sending(ctx, l, func(ctx context.Context) error {
		if err := pause(ctx, l.warm); err != nil {
			return err
		}
		for left := true; left; {
			l.use = users(w.server.postmaster, api.PID())
			took, seen, err := w.flow.measure(ctx, l)
			if err != nil {
				return err
			}
			without.add("without, turn by turn", took, seen, 0)
			if err := w.turnWithJanitor(ctx, l, api.PID(), &with); err != nil {
				return err
			}
			if left, err = w.expiredLeft(ctx); err != nil {
				return err
			}
			without.sofar = with.sofar
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, w.flow.check())
	}
	points = []Point{without.point(0), with.point(e.Expired)}
	for i := range points {
		points[i].API = look()
	}
	return slices.Concat(points, without.byTurns, with.byTurns), w.flow.check()
}

// turnWithJanitor counts no commit that its end cuts off. That nothing is left in
// the end is asked of the tables.
func (w *world) turnWithJanitor(ctx context.Context, l load, api int, with *turns) error {
	janitor, err := startCarrier(ctx, order{By: "janitor", Database: w.database})
	if err != nil {
		return err
	}
	var (
		begun bool
		swept int
	)
	if err := janitor.read(&begun); err != nil {
		return err
	}
	pid := janitor.command.Process.Pid
	l.use = users(w.server.postmaster, api, pid)
	look := residents(pid)
	took, seen, err := w.flow.measure(ctx, l)
	memory := look()
	_ = janitor.stdin.Close()
	if err := errors.Join(err, janitor.read(&swept), janitor.end()); err != nil {
		return err
	}
	memory.Start, memory.Peak = max(with.memory.Start, memory.Start), max(with.memory.Peak, memory.Peak)
	with.memory = memory
	with.add("with the janitor, turn by turn", took, seen, swept)
	return nil
}

// sweepAsWorker is a worker's janitor with the windows of its settings, in a
// process of its own: no charge is carried beside it. It says when it begins, and
// at its end how many rows it has swept.
func sweepAsWorker(ctx context.Context, o order, out io.Writer) error {
	db, err := postgres.Open(ctx, o.Database, postgres.Options{Application: "bench-janitor", Role: postgres.RoleWorker})
	if err != nil {
		return err
	}
	defer db.Close()
	var swept atomic.Int64
	janitor := &worker.Janitor{
		DB: db, Log: quietUntil(ctx), Name: "bench/" + strconv.Itoa(os.Getpid()),
		OutboxRetention: outboxWindow, InboxRetention: inboxWindow,
		Swept: func(_ string, rows int64) { swept.Add(rows) },
	}
	lines := json.NewEncoder(out)
	if err := lines.Encode(true); err != nil {
		return fmt.Errorf("say that sweeping begins: %w", err)
	}
	janitor.Run(ctx)
	if err := lines.Encode(swept.Load()); err != nil {
		return fmt.Errorf("say how much was swept: %w", err)
	}
	return nil
}
