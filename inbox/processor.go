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
	Poll        time.Duration // between claims, see Run
	Drain       time.Duration // how long handlers may go on after Run was told to stop

	// Wake, where set, says that messages were received. It is a hint: one that is
	// lost, or that nobody gives, costs two polls and no more.
	Wake <-chan struct{}

	Log      *slog.Logger
	Observer Observer
}

var (
	errLeaseLost = errors.New("the lease was taken over")
	errDraining  = errors.New("the program stops")
)

// Run claims and processes until ctx ends. Then it claims no more, lets the
// running handlers go on for at most Drain, gives back what they could not
// finish, and returns.
//
// A claim is a commit, whatever it takes, so there is one in a Poll, and where
// there is a Wake one in three unless that is heard. While more is due than there
// are handlers, the next claim comes as soon as a quarter of them are free.
func (p *Processor) Run(ctx context.Context) {
	r := &run{Processor: p, held: make(map[int64]holding), ended: make(chan struct{}, 1)}
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

	ended chan struct{} // a handler has: what came behind its message may be due

	// The loop's own.
	paced <-chan time.Time // when a Poll has passed since the last claim
	full  bool             // the last claim took as much as it could
	away  bool             // the last claim met no store
}

type holding struct {
	message claimed
	cancel  context.CancelCauseFunc
}

// afterFailure is how long a store that did not answer is left alone.
const afterFailure = 250 * time.Millisecond

// unwoken are the polls after which an inbox is looked at that nobody woke and of
// which no handler ended: for what waited for its time, or for another process.
const unwoken = 3

// take fills free slots by one claim and, when there was less than that, waits for
// the next poll. It returns false when ctx ended.
func (r *run) take(ctx context.Context, slots chan struct{}) bool {
	taken := r.places(ctx, slots)
	if ctx.Err() != nil {
		return false // also when a slot became free at the same moment
	}
	free := taken + cap(slots) - len(slots)
	r.paced = time.After(r.Poll)
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
		if i >= taken {
			slots <- struct{}{} // free: only this loop takes slots
		}
		r.start(ctx, c, func() { <-slots })
	}
	for range taken - len(messages) {
		<-slots
	}
	r.full = len(messages) == free
	return r.full || r.rest(ctx)
}

// places takes the free slots that are worth a claim, one at least: behind a claim
// that left messages for later a quarter of all, or what came free in a Poll.
func (r *run) places(ctx context.Context, slots chan struct{}) (taken int) {
	paced, want := r.paced, 1
	if r.full {
		want = max(1, cap(slots)/4)
	}
	for taken < want {
		select {
		case slots <- struct{}{}:
			taken++
		case <-paced:
			paced, want = nil, 1
		case <-ctx.Done():
			return taken
		}
	}
	return taken
}

// rest waits until the inbox is worth a look. It returns false when ctx ended.
func (r *run) rest(ctx context.Context) bool {
	if r.away {
		return pause(ctx, time.After(max(r.Poll, afterFailure)))
	}
	if !pause(ctx, r.paced) || r.Wake == nil {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-r.Wake:
	case <-r.ended:
	case <-time.After((unwoken - 1) * r.Poll):
	}
	return true
}

// pause returns false when ctx ended first.
func pause(ctx context.Context, timer <-chan time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-timer:
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
		if r.settle(ctx, func() *slog.Logger { return r.Log }, func(b *pgx.Batch) { released(b, c.Delivery) }) {
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
		select {
		case r.ended <- struct{}{}:
		default: // the loop has yet to hear of another one
		}
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
