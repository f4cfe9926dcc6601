package inbox

import (
	"context"
	"errors"
	"log/slog"
	"maps"
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
	Observer    Observer
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

	away bool // the last claim met no store; the loop's own
}

type holding struct {
	message claimed
	cancel  context.CancelCauseFunc
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
	messages, err := r.claim(ctx, free)
	if err != nil && !r.away {
		r.Log.WarnContext(ctx, "claim failed, it is tried again until it succeeds", "receiver", r.Receiver, "error", err)
	}
	r.away = err != nil
	if ctx.Err() != nil {
		r.giveBack(ctx, messages) // claimed while the program was told to stop
		return false
	}
	for i, c := range messages {
		if i > 0 {
			slots <- struct{}{} // free: only this loop takes slots
		}
		r.start(ctx, c, func() { <-slots })
	}
	if len(messages) > 0 {
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
func (r *run) claim(ctx context.Context, n int) ([]claimed, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Policy.Lease)
	defer cancel()
	r.mu.Lock()
	held := slices.AppendSeq(make([]int64, 0, len(r.held)), maps.Keys(r.held)) // never null: null would claim nothing
	suspects := r.scale()
	r.mu.Unlock()
	messages, err := r.claimUpTo(ctx, n, suspects, held)
	r.Observer.claimed(messages)
	return messages, err
}

func (r *run) giveBack(ctx context.Context, messages []claimed) {
	for _, c := range messages {
		end := EndLeft
		if r.settle(ctx, r.Log, func(b *pgx.Batch) { released(b, c.Delivery) }) {
			end = EndReleased
		}
		r.Observer.ended(end)
	}
}

func (r *run) start(ctx context.Context, c claimed, free func()) {
	handling, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r.mu.Lock()
	r.held[c.row] = holding{message: c, cancel: cancel}
	r.mu.Unlock()
	r.handlers.Go(func() {
		defer free()
		r.process(handling, c)
		r.mu.Lock()
		delete(r.held, c.row)
		r.mu.Unlock()
		cancel(nil)
	})
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
