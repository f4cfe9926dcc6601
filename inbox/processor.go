package inbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/loop"
)

// Options of a processor. DB, Receiver and Handle are needed; what else is zero has the default
// that is named beside it.
type Options struct {
	DB          groupcommit.DB
	Receiver    string  // names the receiver in the table; at most MaxLength bytes
	Handle      Handler // ends its message by Delivery.Commit or Delivery.Done, else by a commit of the inbox
	Holder      string  // names this process in the table, for operators, before a random text; host and process id
	Concurrency int     // handlers that run at a time; 16
	Policy      Policy
	Drain       time.Duration // how long handlers may continue after Run is stopped; 10 s
	Log         *slog.Logger  // slog.Default()

	// Wake, where set, receives when a message may be due that this processor did not store. It
	// is a hint: a lost one costs a second.
	Wake <-chan struct{}

	// OnReceive, where set, receives what became of messages that were stored. OnClaim receives
	// how many messages were claimed, and how many of them from holders that died.
	OnReceive func(Reception)
	OnClaim   func(messages, deaths int)
	// OnAttempt, where set, is called before an attempt, and ended with the end of the claim.
	// The handler runs, and the end is stored, in the context that it returns. The hooks must
	// return at once.
	OnAttempt func(ctx context.Context, d *Delivery) (within context.Context, ended func(End))
}

// Processor receives messages for one receiver and runs its handler on them.
type Processor struct {
	Options

	slots   slots
	woken   chan struct{}
	hungry  atomic.Bool  // messages are due that found no slot
	behind  atomic.Int64 // pages that brought a message behind another one
	dueFrom atomic.Int64 // no message is due before, in microseconds

	mu    sync.Mutex
	ctx   context.Context // of Run; nil before
	holds map[int64]holding

	promoting  atomic.Bool    // stranded keys are repaired
	background sync.WaitGroup // of that, and of the heartbeat

	// Of the loop alone.
	reached, repaired, patientUntil time.Time
	repairTook                      time.Duration
	repairedKey                     string        // keys up to it were looked at
	pause                           time.Duration // at least until the next claim
}

type holding struct {
	*Delivery

	cancel context.CancelCauseFunc
	behind int64 // when it started
}

var (
	errLost     = errors.New("the message was taken over")
	errDraining = errors.New("the program stops")
)

const (
	minClaimInterval = 10 * time.Millisecond
	releaseTime      = 5 * time.Second // that handlers have after Drain
)

// New makes a processor.
func New(o Options) (*Processor, error) {
	if o.DB == nil || o.Handle == nil || o.Receiver == "" || len(o.Receiver) > MaxLength {
		return nil, fmt.Errorf("inbox: a processor needs a DB, a Handle and a Receiver of 1 to %d bytes", MaxLength)
	}
	host, _ := os.Hostname() // empty where unknown
	o.Holder = cmp.Or(o.Holder, fmt.Sprintf("%s:%d", host, os.Getpid())) + "/" + rand.Text()[:8]
	o.Concurrency, o.Drain = cmp.Or(o.Concurrency, 16), cmp.Or(o.Drain, 10*time.Second)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	q := &o.Policy
	q.Lease, q.GiveUpAfter = cmp.Or(q.Lease, 3*time.Second), cmp.Or(q.GiveUpAfter, 72*time.Hour)
	q.MaxAttempts = cmp.Or(q.MaxAttempts, 12)
	q.BackoffBase = cmp.Or(q.BackoffBase, 200*time.Millisecond)
	q.BackoffCap = max(cmp.Or(q.BackoffCap, time.Minute), q.BackoffBase)
	p := &Processor{Options: o, woken: make(chan struct{}, 1), holds: map[int64]holding{}}
	p.slots.size, p.slots.byPartition = o.Concurrency, map[string]int{}
	return p, nil
}

// Pause stops the start of messages: of all, or of those partitions. It replaces what was
// paused before; Pause(false) resumes. Messages that run continue.
func (p *Processor) Pause(all bool, partitions ...string) {
	if p.slots.pause(all, partitions) {
		p.wake()
	}
}

// Run claims and handles messages until ctx ends. Then it claims no more, lets the running
// handlers continue for at most Drain, ends the context of the others, releases their messages,
// and returns nil. Handlers that ignore their context for 5 s more are an error: others take
// over their messages.
//
// It claims when the next message is due, when Wake receives, when a handler has ended behind
// which another message waits, and once a second, but never sooner than 10 ms after the last
// claim. While more messages are due than there are slots it waits until a quarter of them are free.
func (p *Processor) Run(ctx context.Context) error {
	p.mu.Lock()
	started := p.ctx != nil
	p.ctx = ctx
	p.mu.Unlock()
	if started {
		return errors.New("inbox: a processor runs once")
	}
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	p.background.Go(func() { p.keepAlive(alive) })
	defer p.background.Wait()
	defer die()
	p.slots.setOpen(true)
	p.reached = time.Now() //nolint:forbidigo // it decides only when others are taken over
	loop.Run(ctx, p.Log.With("receiver", p.Receiver), "claim failed, it is retried until it succeeds", func(ctx context.Context) (time.Duration, error) {
		began := time.Now() //nolint:forbidigo // it decides only when the database is asked
		next, err := p.tick(ctx)
		switch {
		case err != nil:
			return 0, err
		case next == 0:
			p.awaitSlots(ctx)
			return 0, nil
		}
		p.rest(ctx, next)
		return max(minClaimInterval, p.pause) - time.Since(began), nil //nolint:forbidigo // as above
	})
	return p.drain()
}

// awaitSlots waits until a quarter of the slots are free, or one for a while, or a poll is due.
func (p *Processor) awaitSlots(ctx context.Context) {
	late := time.After(pollEvery)
	for waits := false; ; {
		n, few := p.slots.available()
		if !few && p.pause == 0 {
			return
		}
		if n > 0 && !waits {
			late, waits = time.After(max(minClaimInterval, p.pause)), true
		}
		select {
		case <-p.woken:
		case <-ctx.Done():
			return
		case <-late:
			return
		}
	}
}

// rest waits until another claim is worthwhile.
func (p *Processor) rest(ctx context.Context, next time.Duration) {
	select {
	case <-ctx.Done():
	case <-p.woken:
	case <-p.Wake:
		p.behind.Add(1) // what another process stored may be behind a message of ours
	case <-time.After(next):
	}
}

func (p *Processor) wake() {
	select {
	case p.woken <- struct{}{}:
	default: // it is awake
	}
}

// start runs the handlers of claimed messages. A handler outlives ctx, of the claim or page.
func (p *Processor) start(ctx context.Context, claimed []*Delivery) {
	if len(claimed) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	deaths := 0
	for _, d := range claimed {
		deaths += min(d.deaths, 1)
		if before, ok := p.holds[d.row]; ok {
			before.cancel(errLost)
		}
		handling, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		if p.ctx.Err() != nil {
			cancel(errDraining)
		}
		p.holds[d.row] = holding{d, cancel, p.behind.Load()}
		p.slots.handle(d.Partition)
		go func() {
			defer cancel(nil)
			end := EndNotStored // if the handler ends its goroutine
			defer func() { p.ended(d, end) }()
			end = p.process(handling, d)
		}()
	}
	if p.OnClaim != nil {
		p.OnClaim(len(claimed), deaths)
	}
}

// ended wakes the loop if a message may be due that waited for this one.
func (p *Processor) ended(d *Delivery, end End) {
	p.mu.Lock()
	mine := p.holds[d.row]
	if mine.Delivery == d { // else it was taken over
		delete(p.holds, d.row)
	}
	p.mu.Unlock()
	p.slots.release(d.Partition)
	if p.hungry.Load() || end != EndDone || d.followed || mine.behind != p.behind.Load() {
		p.wake()
	}
}

// held returns what handlers have.
func (p *Processor) held() []holding {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.holds))
}

func (p *Processor) draining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ctx.Err() != nil
}

// drain waits for the handlers, and cancels them after Drain.
func (p *Processor) drain() error {
	p.slots.setOpen(false)
	ended := make(chan struct{})
	go func() { p.slots.running.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-time.After(p.Drain):
	}
	late := p.held()
	for _, h := range late {
		h.cancel(errDraining)
	}
	select {
	case <-ended:
		return nil
	case <-time.After(releaseTime):
		return fmt.Errorf("inbox: %d handlers of %s ignore the end of their context", len(late), p.Receiver)
	}
}
