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
	Poll        time.Duration // between claims at least, see Run
	Drain       time.Duration // how long handlers may go on after Run was told to stop

	// Wake, where set, says that another process may have made a message due. It is a
	// hint: one that is lost costs a slow poll.
	Wake <-chan struct{}
	// Listening tells whether Wake hears all processes. While it does not, the inbox is
	// looked at every fastPoll; nil: Wake does not.
	Listening func() bool

	// Left, where set, is called when a message was received that could not start: another
	// process may hold the one that it waits for.
	Left func()

	Log      *slog.Logger
	Observer Observer

	mu  sync.Mutex
	now *run
}

var (
	errLeaseLost = errors.New("the lease was taken over")
	errDraining  = errors.New("the program stops")
)

const (
	// slowPoll is the time after which an inbox is looked at that nobody woke.
	slowPoll = time.Second

	// fastPoll is slowPoll where nobody hears the other processes.
	fastPoll = 50 * time.Millisecond

	// afterFailure is how long a store that did not answer is left alone.
	afterFailure = 250 * time.Millisecond
)

// Run claims and processes until ctx ends. Then it claims no more, lets the
// running handlers go on for at most Drain, gives back what they could not
// finish, and returns.
//
// What Receive stores needs no claim where a slot is free. A claim is for the rest:
// retries, messages of holders that died, messages behind another one of their key, and
// what other processes accept. It comes when one of these may be due: when the next due
// time has come, when Wake was heard, when a handler ended that a message may wait
// for, and after a slow poll of a second, and never sooner than Poll after the last
// one. While more is due than there are slots, the next claim comes as soon as a
// quarter of them are free.
func (p *Processor) Run(ctx context.Context) {
	r := p.state()
	r.open(ctx)
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	var beside sync.WaitGroup
	beside.Go(func() { r.keepLeases(beating) })
	for r.take(ctx) {
	}
	r.drain()
	stop()
	beside.Wait()
	p.mu.Lock()
	p.now = nil
	p.mu.Unlock()
	close(r.ended)
}

// state is that of the Run under way, or of the next one.
func (p *Processor) state() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		p.now = &run{
			Processor: p, slots: slots{size: p.Concurrency}, held: make(map[int64]holding), behind: true,
			woken: make(chan struct{}, 1), started: make(chan struct{}), ended: make(chan struct{}),
		}
	}
	return p.now
}

// run is the state of one Run.
type run struct {
	*Processor

	slots    slots
	handlers sync.WaitGroup // and slots that are reserved
	woken    chan struct{}  // by this process, as Wake is by others
	started  chan struct{}  // closed by Run
	ended    chan struct{}  // closed when Run returns

	mu       sync.Mutex
	base     context.Context // of handlers; nil before Run
	held     map[int64]holding
	stopping bool
	behind   bool          // the last claim may have left messages for which it had no slot
	caughtUp chan struct{} // closed when behind ends; nil while nobody waits
	looks    int           // how often a message may have come that waits for a handler

	// The loop's own.
	away      bool      // the last claim met no store
	corrected time.Time // when due times were last corrected
	dueFrom   time.Time // nothing open is due before, see lookAhead
	lookedAt  time.Time // when all that is due was last looked at
}

type holding struct {
	message claimed
	cancel  context.CancelCauseFunc
	looks   int // when it began
}

func (r *run) open(ctx context.Context) {
	r.mu.Lock()
	r.base = context.WithoutCancel(ctx)
	r.mu.Unlock()
	close(r.started)
}

// take claims once, and waits until the inbox is worth another look. It returns false
// when ctx ended.
func (r *run) take(ctx context.Context) bool {
	began := time.Now() //nolint:forbidigo // it decides only when the database is asked
	free := r.claimable(ctx)
	if ctx.Err() != nil {
		r.slots.give(free)
		return false // also when a slot became free at the same moment
	}
	r.correct(ctx)
	messages, next, err := r.claim(ctx, free)
	if err != nil && !r.away {
		r.Log.WarnContext(ctx, "claim failed, it is tried again until it succeeds", "receiver", r.Receiver, "error", err)
	}
	r.away = err != nil
	if ctx.Err() != nil {
		r.giveBack(ctx, messages) // claimed while the program was told to stop
		r.slots.give(free)
		return false
	}
	full := len(messages) == free
	r.mu.Lock()
	for _, c := range messages {
		r.hold(c) //nolint:contextcheck // a handler outlives what started it
	}
	r.setBehind(full || r.away)
	r.mu.Unlock()
	r.slots.give(free - len(messages))
	if full {
		return true
	}
	return r.rest(ctx, next) && pause(ctx, r.Poll-time.Since(began)) //nolint:forbidigo // as above
}

// claimable takes the slots of the next claim, one at least. While older messages wait
// for slots it takes all that are free, once a quarter of all is, or one is after a
// Poll; else it takes no more than a quarter, and leaves the rest to pages.
func (r *run) claimable(ctx context.Context) (taken int) {
	caughtUp, _ := r.isCaughtUp()
	most, late := r.slots.size, time.After(r.Poll)
	if caughtUp {
		most, late = r.slots.few(), time.After(0)
	}
	for taken == 0 && r.slots.wait(ctx, late) {
		taken = r.slots.take(most)
		late = time.After(r.Poll)
	}
	return taken
}

// rest waits until the inbox is worth a look: next is when something is due. It
// returns false when ctx ended.
func (r *run) rest(ctx context.Context, next time.Duration) bool {
	if r.away {
		return pause(ctx, afterFailure)
	}
	next = min(next, slowPoll)
	if r.Wake == nil || r.Listening == nil || !r.Listening() {
		next = min(next, fastPoll)
	}
	select {
	case <-ctx.Done():
		return false
	case <-r.woken:
	case <-r.Wake:
		r.mu.Lock()
		r.looks++ // what was accepted elsewhere may wait for one of our handlers
		r.mu.Unlock()
	case <-time.After(next):
	}
	return true
}

// pause returns false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (r *run) wake() {
	select {
	case r.woken <- struct{}{}:
	default: // it is awake
	}
}

// look says that a message was stored that did not start: now, or when a handler of its
// key ends, a claim may find it.
func (r *run) look() {
	r.mu.Lock()
	r.looks++
	r.mu.Unlock()
	r.wake()
	if r.Left != nil {
		r.Left()
	}
}

// setBehind says whether messages wait for slots; r.mu is held.
func (r *run) setBehind(behind bool) {
	r.behind = behind
	if !behind && r.caughtUp != nil {
		close(r.caughtUp)
		r.caughtUp = nil
	}
}

// isCaughtUp tells whether no older messages wait for slots, and what is closed when
// that is so.
func (r *run) isCaughtUp() (bool, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.caughtUp == nil {
		r.caughtUp = make(chan struct{})
	}
	return !r.behind && !r.stopping, r.caughtUp
}

// claim is not interrupted: a claim that commits unseen would keep its messages
// waiting for the end of a lease that nobody holds.
func (r *run) claim(ctx context.Context, n int) ([]claimed, time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.Policy.Lease)
	defer cancel()
	r.mu.Lock()
	held := slices.AppendSeq(make([]int64, 0, len(r.held)), maps.Keys(r.held)) // never null: null would claim nothing
	suspects := r.scale()
	r.mu.Unlock()
	messages, next, err := r.claimUpTo(ctx, n, suspects, held)
	r.Observer.claimed(messages)
	return messages, next, err
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

// hold runs the handler on a message for which a slot is taken; r.mu is held. Of a row
// that is held already the lease has lapsed, and somebody has claimed it since.
func (r *run) hold(c claimed) {
	if before, ok := r.held[c.row]; ok {
		before.cancel(errLeaseLost)
	}
	handling, cancel := context.WithCancelCause(r.base)
	r.held[c.row] = holding{message: c, cancel: cancel, looks: r.looks}
	r.handlers.Go(func() {
		defer r.slots.give(1)
		end := r.process(handling, c)
		r.mu.Lock()
		mine := r.held[c.row]
		if mine.message.fence == c.fence {
			delete(r.held, c.row)
		}
		awaited := r.looks != mine.looks
		r.mu.Unlock()
		cancel(nil)
		if end != EndDone || awaited || !c.onReceipt {
			r.wake() // what waited behind it may be due
		}
	})
}

// drain waits for the handlers, at first patiently, and for pages that have slots.
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
	r.mu.Unlock()
	<-finished
}
