package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Processor runs one receiver's handler on what the inbox holds for it.
type Processor struct {
	DB          *postgres.DB
	Receiver    string
	Holder      string // who claims, for people who read the table
	Handle      Handler
	Concurrency int // handlers at a time
	Policy      Policy
	Poll        time.Duration // between looks at an inbox that had nothing due
	Drain       time.Duration // how long handlers may go on after Run was told to stop
	Log         *slog.Logger
}

var (
	errLeaseLost = errors.New("the lease was taken over")
	errDraining  = errors.New("the program stops")
)

// Run claims and processes until ctx ends. Then it claims no more, lets the
// running handlers go on for at most Drain, gives back what they could not
// finish, and returns.
func (p *Processor) Run(ctx context.Context) {
	r := &run{Processor: p, held: make(map[int64]holding)}
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	var heartbeat sync.WaitGroup
	heartbeat.Go(func() { r.keepLeases(beating) })

	slots := make(chan struct{}, p.Concurrency)
	for ctx.Err() == nil {
		if !r.take(ctx, slots) {
			break
		}
	}
	r.drain()
	stop()
	heartbeat.Wait()
}

// run is the state of one Run.
type run struct {
	*Processor
	handlers sync.WaitGroup

	mu   sync.Mutex
	held map[int64]holding
}

type holding struct {
	delivery Delivery
	cancel   context.CancelCauseFunc
}

// afterFailure is how long a store that did not answer is left alone.
const afterFailure = 250 * time.Millisecond

// take waits for a free slot, fills all free slots by one claim and, when
// nothing was due, waits for the next poll. It returns false when ctx ended.
func (r *run) take(ctx context.Context, slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return false // also when a slot became free at the same moment
	}
	free := 1 + cap(slots) - len(slots)
	deliveries, err := r.claim(ctx, free)
	if err != nil {
		r.Log.WarnContext(ctx, "claim failed", "receiver", r.Receiver, "error", err)
	}
	if ctx.Err() != nil {
		r.giveBack(ctx, deliveries) // claimed while the program was told to stop
		return false
	}
	for i, d := range deliveries {
		if i > 0 {
			slots <- struct{}{} // free: only this loop takes slots
		}
		r.start(ctx, d, func() { <-slots })
	}
	if len(deliveries) > 0 {
		return true
	}
	<-slots
	pause := r.Poll
	if err != nil {
		pause = max(pause, afterFailure)
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// claim is not interrupted: a claim that commits unseen would keep its messages
// waiting for the end of a lease that nobody holds.
func (r *run) claim(ctx context.Context, n int) ([]Delivery, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Policy.Lease)
	defer cancel()
	r.mu.Lock()
	held := slices.AppendSeq(make([]int64, 0, len(r.held)), maps.Keys(r.held)) // never null: null would claim nothing
	r.mu.Unlock()
	return r.claimUpTo(ctx, n, held)
}

func (r *run) giveBack(ctx context.Context, deliveries []Delivery) {
	for _, d := range deliveries {
		r.settle(ctx, r.Log, func(b *pgx.Batch) { released(b, d) })
	}
}

func (r *run) start(ctx context.Context, d Delivery, free func()) {
	handling, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r.mu.Lock()
	r.held[d.row] = holding{delivery: d, cancel: cancel}
	r.mu.Unlock()
	r.handlers.Go(func() {
		defer free()
		defer func() {
			r.mu.Lock()
			delete(r.held, d.row)
			r.mu.Unlock()
			cancel(nil)
		}()
		r.process(handling, d)
	})
}

// process runs the handler and ends the claim accordingly.
func (r *run) process(ctx context.Context, d Delivery) {
	log := r.Log.With("receiver", r.Receiver, "message_id", d.ID, "ordering_key", d.OrderingKey, "attempt", d.Attempt)
	if d.Attempt > r.Policy.MaxAttempts {
		// Its holders died before they could say why.
		r.settle(ctx, log, func(b *pgx.Batch) {
			parked(b, d, fmt.Sprintf("%d holders died or went silent", r.Policy.MaxAttempts))
		})
		log.ErrorContext(ctx, "message parked", "reason", "its holders died")
		return
	}
	result, err := r.guard(ctx, d)
	var waiting *WaitError
	var parking *ParkError
	switch {
	case err == nil && result == Completed:
	case err == nil:
		r.settle(ctx, log, func(b *pgx.Batch) { Done(b, d) })
	case errors.Is(context.Cause(ctx), errLeaseLost) || IsLost(err):
		log.WarnContext(ctx, "lease lost, the new holder goes on", "error", err)
	case errors.Is(context.Cause(ctx), errDraining):
		r.settle(ctx, log, func(b *pgx.Batch) { released(b, d) })
		log.InfoContext(ctx, "message released")
	case errors.As(err, &parking):
		r.settle(ctx, log, func(b *pgx.Batch) { parked(b, d, err.Error()) })
		log.ErrorContext(ctx, "message parked", "reason", err)
	case errors.As(err, &waiting):
		r.settle(ctx, log, func(b *pgx.Batch) { waits(b, d, r.Policy, waiting.AtLeast, err.Error()) })
		log.InfoContext(ctx, "message waits", "reason", err)
	default:
		r.settle(ctx, log, func(b *pgx.Batch) { failed(b, d, r.Policy, err.Error()) })
		log.WarnContext(ctx, "attempt failed", "error", err)
	}
}

// guard turns a panic of the handler into an error.
func (r *run) guard(ctx context.Context, d Delivery) (result Result, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	return r.Handle(ctx, d)
}

// settle commits the end of a claim. When that does not succeed, the lease ends
// by itself and the message is taken again.
func (r *run) settle(ctx context.Context, log *slog.Logger, queue func(*pgx.Batch)) {
	b := &pgx.Batch{}
	queue(b)
	if err := r.DB.Commit(ctx, b); err != nil {
		log.WarnContext(ctx, "claim not ended, its lease will be", "error", err)
	}
}

// keepLeases renews every lease that is held, every third of a lease, and
// cancels the handlers of what was taken over.
func (r *run) keepLeases(ctx context.Context) {
	third := r.Policy.Lease / 3
	tick := time.NewTicker(third)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.renew(ctx, third)
		}
	}
}

// renew gives up after a while: a connection that never answers must not cost
// the leases that the next one could keep.
func (r *run) renew(ctx context.Context, patience time.Duration) {
	r.mu.Lock()
	held := slices.Collect(maps.Values(r.held))
	r.mu.Unlock()
	if len(held) == 0 {
		return
	}
	deliveries := make([]Delivery, len(held))
	for i, h := range held {
		deliveries[i] = h.delivery
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	still, err := renewLeases(ctx, r.DB, deliveries, r.Policy.Lease)
	if err != nil {
		r.Log.WarnContext(ctx, "leases not renewed", "receiver", r.Receiver, "error", err)
		return
	}
	for _, h := range held {
		if !still[h.delivery.row] {
			h.cancel(errLeaseLost)
		}
	}
}

// drain waits for the handlers, at first patiently.
func (r *run) drain() {
	finished := make(chan struct{})
	go func() { r.handlers.Wait(); close(finished) }()
	select {
	case <-finished:
		return
	case <-time.After(r.Drain):
	}
	r.mu.Lock()
	for _, h := range r.held {
		h.cancel(errDraining)
	}
	r.mu.Unlock()
	<-finished
}
