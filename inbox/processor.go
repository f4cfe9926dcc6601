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
	// lost, or that nobody gives, costs two polls and no more. A Handover sets it, and
	// rings where a claim may find something.
	Wake <-chan struct{}

	Log      *slog.Logger
	Observer Observer

	room *room // where pages find places; nil: see NewHandover
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
// are handlers, the next claim comes as soon as a quarter of them are free. What a
// page hands over (see Handover) needs no claim.
func (p *Processor) Run(ctx context.Context) {
	r := &run{
		Processor: p, slots: make(chan struct{}, p.Concurrency),
		held: make(map[int64]holding), ended: make(chan struct{}, 1),
		offering: offering{behind: true, awaited: make(map[string]bool)}, arrived: make(chan struct{}, 1),
	}
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	var beside sync.WaitGroup
	beside.Go(func() { r.keepLeases(beating) })
	if p.room != nil {
		beside.Go(func() { r.confirmAlways(beating) })
		p.room.open(r)
	}
	for ctx.Err() == nil {
		if !r.take(ctx) {
			break
		}
	}
	if p.room != nil {
		p.room.open(nil)
	}
	r.drain()
	stop()
	beside.Wait()
}

// run is the state of one Run.
type run struct {
	*Processor
	handlers sync.WaitGroup // and places that are offered
	slots    chan struct{}  // holds what is taken

	mu   sync.Mutex
	held map[int64]holding
	offering

	ended   chan struct{} // a handler has: what came behind its message may be due
	arrived chan struct{} // a page has ended that took something

	// The loop's own.
	paced <-chan time.Time // when a Poll has passed since the last claim
	full  bool             // the last claim took as much as it could
	away  bool             // the last claim met no store

	corrected time.Time // when due times were last corrected
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
func (r *run) take(ctx context.Context) bool {
	taken := r.places(ctx)
	if ctx.Err() != nil {
		r.free(taken)
		return false // also when a slot became free at the same moment
	}
	r.paced = time.After(r.Poll)
	r.correct(ctx)
	messages, err := r.claim(ctx, taken)
	if err != nil && !r.away {
		r.Log.WarnContext(ctx, "claim failed, it is tried again until it succeeds", "receiver", r.Receiver, "error", err)
	}
	r.away = err != nil
	if ctx.Err() != nil {
		r.giveBack(ctx, messages) // claimed while the program was told to stop
		r.free(taken)
		return false
	}
	r.full = len(messages) == taken
	r.free(taken - len(messages))
	r.setBehind(r.full || r.away)
	for _, c := range messages {
		r.start(ctx, c)
	}
	return r.full || r.rest(ctx)
}

// places takes the free slots that are worth a claim, one at least: behind a claim
// that left messages for later a quarter of all, or what came free in a Poll. What is
// free beside them it takes as well. Only who offers places to pages leaves them
// these, and looks with a quarter of all.
func (r *run) places(ctx context.Context) (taken int) {
	quarter := max(1, cap(r.slots)/4)
	paced, want := r.paced, 1
	if r.full {
		want = quarter
	}
	for taken < want {
		select {
		case r.slots <- struct{}{}:
			taken++
		case <-paced:
			paced, want = nil, 1
		case <-ctx.Done():
			return taken
		}
	}
	most := cap(r.slots)
	if r.room != nil && !r.isBehind() {
		most = quarter
	}
	return taken + r.more(most-taken)
}

// more takes free slots, no more than n, and does not wait.
func (r *run) more(n int) (taken int) {
	for taken < n {
		select {
		case r.slots <- struct{}{}:
			taken++
		default:
			return taken
		}
	}
	return taken
}

func (r *run) free(n int) {
	for range n {
		<-r.slots
	}
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
	for _, c := range slices.Concat(r.told, r.confirming) {
		held = append(held, c.row)
	}
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

// start runs the handler on a message for which a slot is taken.
func (r *run) start(ctx context.Context, c claimed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold(ctx, c)
}

// hold is start where r.mu is held. Of a row that is held already the lease has
// lapsed: a claim has taken it again while a page was told of.
func (r *run) hold(ctx context.Context, c claimed) {
	if before, ok := r.held[c.row]; ok {
		before.cancel(errLeaseLost)
	}
	handling, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r.held[c.row] = holding{message: c, cancel: cancel}
	r.handlers.Go(func() {
		defer r.free(1)
		end := r.process(handling, c)
		r.mu.Lock()
		if r.held[c.row].message.fence == c.fence {
			delete(r.held, c.row)
		}
		awaited := r.isAwaited(c)
		r.mu.Unlock()
		cancel(nil)
		if c.onReceipt && end == EndDone && !awaited {
			return // nothing waits behind it that anybody knows of
		}
		select {
		case r.ended <- struct{}{}:
		default: // the loop has yet to hear of another one
		}
	})
}

// drain waits for the handlers, at first patiently, and for pages that were offered
// places.
func (r *run) drain() {
	r.mu.Lock()
	r.stopping = true
	r.mu.Unlock()
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
	r.abandon()
	r.mu.Unlock()
	<-finished
}
