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

// Processor runs the handler of one receiver on what the inbox holds for it.
type Processor struct {
	DB          *postgres.DB
	Receiver    string
	Holder      string // names this process in the table, for operators
	Handle      Handler
	Concurrency int // handlers that run at a time
	Policy      Policy
	Poll        time.Duration // the least time between two claims, see Run
	Drain       time.Duration // how long handlers may continue after Run is stopped

	// Wake, where set, receives when another process may have made a message due. It is a
	// hint: a lost one costs a poll, see Run.
	Wake <-chan struct{}
	// Listening tells whether Wake receives from all processes. While it does not, the
	// processor polls every fastPoll. Where nil, it does not.
	Listening func() bool

	// Left, where set, is called when a message was received that could not start: another
	// process may run the message that blocks it.
	Left func()

	Log      *slog.Logger
	Observer Observer

	once sync.Once
	run  *run
}

var (
	errLeaseLost = errors.New("the lease was taken over")
	errDraining  = errors.New("the program stops")
)

const (
	slowPoll     = time.Second            // while messages wait for something else than their time
	quietPoll    = 5 * time.Second        // while none does
	fastPoll     = 50 * time.Millisecond  // while other processes are not heard
	afterFailure = 250 * time.Millisecond // while the database does not answer
)

// Run claims and handles messages until ctx ends. Then it claims no more, lets the running
// handlers continue for at most Drain, releases what they could not finish, and returns. A
// processor runs once.
//
// What Receive stores needs no claim where a slot is free. A claim is for the rest:
// retries, messages of holders that died, messages behind another one of their key,
// messages that are held back, and what other processes accept. The processor claims when
// one of these may be due: when the next due time has come, when Wake receives, when a
// handler ended that a message may wait for, and after a poll of a second, or of five while nothing
// waits, but never sooner than Poll after the last claim. While more messages are due than there are slots,
// it claims as soon as a quarter of the slots are free.
func (p *Processor) Run(ctx context.Context) {
	r := p.state()
	r.mu.Lock()
	r.base = context.WithoutCancel(ctx)
	r.mu.Unlock()
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var renewal sync.WaitGroup
	renewal.Go(func() { r.keepLeases(renewing) })
	for r.claimOnce(ctx) {
	}
	r.drain()
	stop()
	renewal.Wait()
}

func (p *Processor) state() *run {
	p.once.Do(func() {
		p.run = &run{
			Processor: p,
			observer:  p.Observer.complete(),
			slots:     slots{size: p.Concurrency, byPartition: map[string]int{}, dueFirst: true},
			woken:     make(chan struct{}, 1),
			held:      map[int64]holding{},
			heldBack:  map[string]int64{},
			forSeldom: true,
		}
	})
	return p.run
}

// run is the state of a processor.
type run struct {
	*Processor

	observer Observer
	slots    slots
	handlers sync.WaitGroup // running handlers and reserved slots
	woken    chan struct{}  // by this process, as Wake is by others

	mu       sync.Mutex
	base     context.Context // of handlers; nil before Run
	held     map[int64]holding
	heldBack map[string]int64 // partitions with messages that are held back, above a row number
	stopping bool
	looks    int // how often a message may have come that waits for a handler

	// Used by the claim loop alone.
	dueNext   bool      // with one slot, what is due has this turn
	away      bool      // the last claim failed
	corrected time.Time // when due times were last corrected
	dueFrom   time.Time // no open message is due before, see lookAhead
	lookedAt  time.Time // when the last claim without that bound was
	forSeldom bool      // there may be messages for claimSeldom
}

type holding struct {
	message claimed
	cancel  context.CancelCauseFunc
	looks   int // when it started
}

// claimOnce claims once, and waits until another claim is worthwhile. It returns false
// when ctx has ended.
func (r *run) claimOnce(ctx context.Context) bool {
	began := time.Now() //nolint:forbidigo // it decides only when the database is asked
	taken := r.takeSlots(ctx)
	if ctx.Err() != nil {
		r.slots.give(taken)
		return false // also when a slot became free at the same moment
	}
	r.correctDueTimes(ctx)
	messages, next, err := r.claim(ctx, taken)
	if err != nil && !r.away {
		r.Log.WarnContext(ctx, "claim failed, it is retried until it succeeds", "receiver", r.Receiver, "error", err)
	}
	r.away = err != nil
	full := len(messages) >= taken
	claimed := r.admit(messages)
	r.observeClaimed(claimed)
	if ctx.Err() != nil {
		r.release(ctx, claimed)
		r.slots.give(taken)
		return false
	}
	r.mu.Lock()
	for _, c := range claimed {
		r.slots.assign(c.Partition)
		r.start(c) //nolint:contextcheck // a handler outlives the claim that started it
	}
	r.mu.Unlock()
	r.slots.setDueFirst(full || r.away)
	r.slots.give(taken - len(claimed))
	if full {
		return true
	}
	return r.rest(ctx, next) && pause(ctx, r.Poll-time.Since(began)) //nolint:forbidigo // as above
}

// takeSlots takes the slots of the next claim, at least one. While due messages wait for
// slots it takes all that are free, once a quarter of all is free or one has been for a
// Poll. Otherwise it takes half of the free ones, at most a quarter of all, and leaves the
// rest to pages.
func (r *run) takeSlots(ctx context.Context) (taken int) {
	for taken == 0 {
		_, dueFirst, _ := r.slots.state()
		while := r.Poll
		if !dueFirst {
			while = 0
		}
		if !r.slots.wait(ctx, while, false) {
			return 0
		}
		most, _, _ := r.slots.state()
		if !dueFirst {
			most = min((most+1)/2, r.slots.few())
		}
		taken = r.slots.take(most)
	}
	return taken
}

// admit returns the messages of a claim that are not held back.
func (r *run) admit(messages []claimed) []claimed {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(messages, func(c claimed) bool {
		if !c.fits {
			r.holdBack(c.Partition)
		}
		return !c.fits
	})
}

// rest waits until a claim is worthwhile: next is when a message is due. It returns false
// when ctx has ended.
func (r *run) rest(ctx context.Context, next time.Duration) bool {
	if r.away {
		return pause(ctx, afterFailure)
	}
	if r.Wake == nil || r.Listening == nil || !r.Listening() {
		next = min(next, fastPoll)
	}
	select {
	case <-ctx.Done():
		return false
	case <-r.woken:
	case <-r.Wake:
		r.mu.Lock()
		r.looks++ // what another process accepted may wait for one of our handlers
		r.mu.Unlock()
	case <-time.After(next):
	}
	return true
}

// pause returns false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
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

// look says that a message was stored that did not start: a claim may find it now, or when
// a handler of its key ends.
func (r *run) look() {
	r.mu.Lock()
	r.looks++
	r.mu.Unlock()
	r.wake()
	if r.Left != nil {
		r.Left()
	}
}

// handled returns the rows whose handlers run, and the weight of the suspected poison
// messages among them.
func (r *run) handled() (rows []int64, weight int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.held {
		weight += h.message.weight()
	}
	return slices.AppendSeq(make([]int64, 0, len(r.held)), maps.Keys(r.held)), weight // never null: null would claim nothing
}

func (r *run) observeClaimed(messages []claimed) {
	if len(messages) == 0 {
		return
	}
	deaths := 0
	for _, c := range messages {
		deaths += min(c.deaths, 1)
	}
	r.observer.Claimed(len(messages), deaths)
}

// release ends claims whose handlers did not start.
func (r *run) release(ctx context.Context, messages []claimed) {
	for _, c := range messages {
		end := EndLeft
		if r.finish(ctx, r.Log, func(b *pgx.Batch) { b.Queue(release, c.row, c.fence) }) {
			end = EndReleased
		}
		r.observer.Ended(end)
	}
}

// start runs the handler on a message that has a slot; r.mu is held. If the row is held
// already, its lease has expired and this claim has taken it over.
func (r *run) start(c claimed) {
	if before, ok := r.held[c.row]; ok {
		before.cancel(errLeaseLost)
	}
	handling, cancel := context.WithCancelCause(r.base)
	r.held[c.row] = holding{message: c, cancel: cancel, looks: r.looks}
	r.handlers.Go(func() {
		defer r.slots.leave(c.Partition)
		end := r.process(handling, c)
		r.mu.Lock()
		mine := r.held[c.row]
		if mine.message.fence == c.fence {
			delete(r.held, c.row)
		}
		above, heldBack := r.heldBack[c.Partition]
		if heldBack {
			r.heldBack[c.Partition] = min(above, c.row) // a later one of its key was passed over
		}
		awaited := heldBack || r.looks != mine.looks
		r.mu.Unlock()
		cancel(nil)
		if end != EndDone || awaited || !c.onReceipt {
			r.wake() // what waited behind it may be due
		}
	})
}

// drain waits for the handlers and for pages that have slots. After Drain it cancels the
// handlers.
func (r *run) drain() {
	r.mu.Lock()
	r.stopping = true
	r.slots.setDueFirst(true)
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
