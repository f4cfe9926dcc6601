package inbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/loop"
)

// Processor receives messages for one receiver and runs its handler on them. DB, Receiver
// and Handle are needed; what else is zero has the default that is named beside it. The
// fields are not changed after the first call of a method.
type Processor struct {
	// DB needs two more connections than its handlers hold at a time. Where the heartbeat has
	// none, leases expire, other processes take the messages, and the handlers' work is repeated.
	DB       groupcommit.DB
	Receiver string  // names the receiver in the table; at most MaxLength bytes
	Handle   Handler // needed by Run

	Holder           string        // names this process in the table, for operators; host, process id and a random text
	Concurrency      int           // handlers that run at a time, see DB; 16
	Policy           Policy        // each field has a default
	MinClaimInterval time.Duration // between two claims, see Run; 20 ms
	Drain            time.Duration // how long handlers may continue after Run is stopped; 10 s
	Log              *slog.Logger  // slog.Default()

	// Wake, where set, receives when another process may have made a message due. Pass a bell of
	// outbox.Doorbell, and ring it after each commit for which MakesMessagesDue is true. It is a
	// hint: a lost one costs a poll, see Run.
	Wake <-chan struct{}
	// Listening reports whether Wake receives from all processes. While it does not, the
	// processor polls every 50 ms. Where nil, it does not.
	Listening func() bool

	// OnDeferred, where set, is called when a message was received that could not start: another
	// process may run the message that blocks it, so OnDeferred rings for Wake of the others.
	// Like the hooks below it must return at once.
	OnDeferred func()
	// OnReceive, where set, receives what became of messages that Receive or Consume stored.
	OnReceive func(Reception)
	// OnClaim, where set, receives how many messages a claim or a page has claimed, and how
	// many of them from a holder that died or went silent.
	OnClaim func(messages, deaths int)
	// OnAttempt, where set, is called before an attempt, and ended with the end of the claim.
	// The handler runs, and the end is stored, in the context that it returns, which must
	// derive from ctx.
	OnAttempt func(ctx context.Context, d *Delivery) (within context.Context, ended func(End))

	once    sync.Once
	run     *run
	invalid error
}

// setDefaults fills in what is zero.
func (p *Processor) setDefaults() {
	host, _ := os.Hostname() // empty where unknown
	p.Holder = cmp.Or(p.Holder, fmt.Sprintf("%s:%d:%s", host, os.Getpid(), rand.Text()[:8]))
	p.Concurrency = cmp.Or(p.Concurrency, 16)
	p.MinClaimInterval = cmp.Or(p.MinClaimInterval, 20*time.Millisecond)
	p.Drain = cmp.Or(p.Drain, 10*time.Second)
	if p.Log == nil {
		p.Log = slog.Default()
	}
	o := &p.Policy
	o.Lease = cmp.Or(o.Lease, 3*time.Second)
	o.MaxAttempts = cmp.Or(o.MaxAttempts, 12)
	o.MaxDeaths = cmp.Or(o.MaxDeaths, 4*o.MaxAttempts)
	o.GiveUpAfter = cmp.Or(o.GiveUpAfter, 72*time.Hour)
	o.BackoffBase = cmp.Or(o.BackoffBase, 200*time.Millisecond)
	o.BackoffCap = max(cmp.Or(o.BackoffCap, time.Minute), o.BackoffBase)
}

// check returns what makes the processor unusable.
func (p *Processor) check() error {
	switch {
	case p.DB == nil:
		return errors.New("inbox: the processor has no DB")
	case p.Receiver == "" || len(p.Receiver) > MaxLength || !isText(p.Receiver):
		return fmt.Errorf("inbox: the receiver %.*q is empty, no text, or longer than %d bytes", MaxLength, p.Receiver, MaxLength)
	case min(p.Concurrency, p.Policy.MaxAttempts) < 0 || min(p.MinClaimInterval, p.Drain, p.Policy.Lease, p.Policy.BackoffBase) < 0:
		return errors.New("inbox: a setting of the processor is negative")
	}
	return nil
}

var (
	errLeaseLost = errors.New("the lease was taken over")
	errDraining  = errors.New("the program stops")
)

const (
	slowPoll     = time.Second            // while messages wait for something else than their time
	quietPoll    = 10 * time.Second       // while none does
	fastPoll     = 50 * time.Millisecond  // while LISTEN receives nothing
	afterFailure = 250 * time.Millisecond // while the database does not answer
)

// Run claims and handles messages until ctx ends. Then it claims no more, lets the running
// handlers continue for at most Drain, releases what they could not finish, and returns nil:
// later where a handler ignores the end of its context.
// It returns an error at once if a field of the processor cannot be. While the database is
// away, or lacks the tables, it logs so and tries again. A processor runs once.
//
// What Receive stores needs no claim where a slot is free. A claim is for the rest:
// retries, messages of holders that died, messages behind another one of their key,
// messages that are held back, and what other processes accept. The processor claims when
// the next due time has come, when Wake receives, when a handler ended that a message may
// wait for, and after a poll of a second, or of ten while nothing waits, but never sooner
// than MinClaimInterval after the last claim. While more messages are due than there are slots, it
// claims as soon as a quarter of the slots are free.
func (p *Processor) Run(ctx context.Context) error {
	r, err := p.state()
	if err == nil && p.Handle == nil {
		err = errors.New("inbox: the processor has no Handle")
	}
	if err == nil && !r.begin(ctx) {
		err = errors.New("inbox: a processor runs once")
	}
	if err != nil {
		return err
	}
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var renewal sync.WaitGroup
	renewal.Go(func() { r.keepLeases(renewing) })
	for r.claimOnce(ctx) {
	}
	r.drain()
	stop()
	renewal.Wait()
	return nil
}

// Pause stops the start of messages: of all, or of those partitions. It replaces what was
// paused before, and may be called at any time; Pause(false) resumes. While all are paused
// nothing is claimed, and what a page brings waits. Messages of a paused partition are held
// back. Messages that run continue, and one whose holder died runs again unless all are
// paused. The pause is this process's, and ends with it.
func (p *Processor) Pause(all bool, partitions ...string) {
	r, _ := p.state() // Run and Consume report what is wrong
	if r.slots.pause(all, partitions) {
		r.wake()
	}
}

// state returns the state of a processor, or why it can have none.
func (p *Processor) state() (*run, error) {
	p.once.Do(func() {
		p.setDefaults()
		p.invalid = p.check()
		p.run = &run{Processor: p, slots: newSlots(p.Concurrency), woken: make(chan struct{}, 1), held: map[int64]holding{}}
	})
	return p.run, p.invalid
}

// run is the state of a processor.
type run struct {
	*Processor

	slots *slots
	woken chan struct{} // by this process, as Wake is by others

	mu            sync.Mutex
	runCtx        context.Context // of Run; nil before
	held          map[int64]holding
	deferredCount int // messages that were stored and did not start

	// Used by the claim loop alone.
	away      bool      // the last claim failed
	dueFrom   time.Time // no open message is due before, see readDueTimes
	scannedAt time.Time // when the last full scan was
	cursor    scanCursor
}

type holding struct {
	*Delivery

	cancel         context.CancelCauseFunc
	deferredBefore int // deferredCount when it started
}

// begin says that the processor runs. It returns false if it did already.
func (r *run) begin(ctx context.Context) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.runCtx == nil
	if first {
		r.runCtx = ctx
	}
	return first
}

// claimOnce claims once, and waits until another claim is worthwhile. It returns false
// when ctx has ended.
func (r *run) claimOnce(ctx context.Context) bool {
	began := time.Now() //nolint:forbidigo // it decides only when the database is asked
	slots := r.slots.takeForClaim(ctx, r.MinClaimInterval)
	if slots == 0 {
		return false
	}
	left, next, err := r.claim(ctx, slots)
	more := err == nil && next == 0
	r.slots.releaseUnused(left, more || err != nil)
	if err != nil && !r.away {
		r.Log.WarnContext(ctx, "claim failed, it is retried until it succeeds", "receiver", r.Receiver, "error", err)
	}
	r.away = err != nil
	switch {
	case r.away:
		return loop.Pause(ctx, afterFailure, nil)
	case more:
		return true
	}
	return r.rest(ctx, next) && loop.Pause(ctx, r.MinClaimInterval-time.Since(began), nil) //nolint:forbidigo // as above
}

// rest waits until a claim is worthwhile: next is when a message is due. It returns false
// when ctx has ended.
func (r *run) rest(ctx context.Context, next time.Duration) bool {
	if r.Wake == nil || r.Listening == nil || !r.Listening() {
		next = min(next, fastPoll)
	}
	select {
	case <-ctx.Done():
		return false
	case <-r.woken:
	case <-r.Wake:
		r.mu.Lock()
		r.deferredCount++ // what another process accepted may wait for one of our handlers
		r.mu.Unlock()
	case <-time.After(next):
	}
	return true
}

func (r *run) wake() {
	select {
	case r.woken <- struct{}{}:
	default: // it is awake
	}
}

// notifyDeferred reports that a message was stored that did not start: a claim may find it now,
// or when a handler of its key ends.
func (r *run) notifyDeferred() {
	r.mu.Lock()
	r.deferredCount++
	r.mu.Unlock()
	r.wake()
	if r.OnDeferred != nil {
		r.OnDeferred()
	}
}

// runningRows returns the rows whose handlers run, and the weight of the suspected poison
// messages among them.
func (r *run) runningRows() (rows []int64, weight int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rows = []int64{} // never null: null would claim nothing
	for row, h := range r.held {
		rows = append(rows, row)
		weight += h.weight()
	}
	return rows, weight
}

// start runs the handlers of messages that have slots. If the program stops, it releases
// them instead. A handler outlives ctx, of the claim or page. If a row is held already, its
// lease has expired and this claim has taken it over.
func (r *run) start(ctx context.Context, messages []*Delivery) {
	if len(messages) == 0 {
		return
	}
	if r.OnClaim != nil {
		deaths := 0
		for _, d := range messages {
			deaths += min(d.deaths, 1)
		}
		r.OnClaim(len(messages), deaths)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range messages {
		if before, ok := r.held[d.row]; ok {
			before.cancel(errLeaseLost)
		}
		handling, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		if r.runCtx.Err() != nil {
			cancel(errDraining)
		}
		r.held[d.row] = holding{d, cancel, r.deferredCount}
		go func() {
			end := EndNotStored // if the handler ends its goroutine, as a test's FailNow does
			defer func() {
				cancel(nil)
				r.ended(d, end)
				r.slots.release(d.Partition)
			}()
			end = r.process(handling, d)
		}()
	}
}

// ended wakes the claim loop if a message may be due that waited for this one.
func (r *run) ended(d *Delivery, end End) {
	r.mu.Lock()
	mine := r.held[d.row]
	if mine.Delivery == d { // else the row was taken over, or its number was given again after a failover
		delete(r.held, d.row)
	}
	awaited := r.deferredCount != mine.deferredBefore
	r.mu.Unlock()
	if r.slots.ended(d) || awaited || end != EndDone || !d.onReceipt {
		r.wake()
	}
}

// drain waits for the handlers and for pages that have slots. After Drain it cancels the
// handlers.
func (r *run) drain() {
	r.slots.releaseUnused(0, true)
	if r.slots.waitForAll(time.After(r.Drain)) {
		return
	}
	r.mu.Lock()
	for _, h := range r.held {
		h.cancel(errDraining)
	}
	r.mu.Unlock()
	r.slots.waitForAll(nil)
}
