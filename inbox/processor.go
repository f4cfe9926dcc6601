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

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/loop"
)

// Options of a processor. DB, Receiver and Handle are needed; the others have the default that is named beside them.
type Options struct {
	DB          groupcommit.DB
	Receiver    string  // names the receiver in the table; at most 255 bytes
	Handle      Handler // ends its message by Delivery.Commit or Delivery.Done, else by a commit of the inbox
	Holder      string  // names this process in the table, for operators, before a random text; host and process id
	Concurrency int     // handlers that run at a time; 16
	Policy      Policy
	Drain       time.Duration // how long handlers may continue after Run is stopped; 10 s
	Log         *slog.Logger  // slog.Default()

	// Wake, where set, receives when a message may be due that this processor did not store. A lost hint costs a second.
	Wake <-chan struct{}

	// OnReceive, where set, receives what became of messages that were stored.
	OnReceive func(Reception)
	// OnAttempt, where set, is called before an attempt, and ended with the end of the claim. The handler runs, and the
	// end is stored, in the context that it returns. The hooks must return at once.
	OnAttempt func(ctx context.Context, d *Delivery) (within context.Context, ended func(End))
}

// Processor receives messages for one receiver and runs its handler on them, in these goroutines:
//
//	claims             tick repairs what others left, and claims; then it waits until a message may be due
//	Consume, Receive   storePage stores a page, and claims too
//	each handler       process runs it, ends its claim, frees its slot, and wakes the loop of claims
//	hear               wakes the loop of claims when Wake receives
//	the beat of Run    beat renews the registration, and ends the contexts of handlers whose messages are lost
//
// A claim is three calls: slots.reserve takes free slots, commitClaim commits the claim, slots.start starts a handler for
// each message. The mutex of slots guards who has which slot, and no call of the database is made under it. What
// may have left a due message unclaimed is counted as slots.missed: a handler whose claim is older wakes the loop. In the
// database claims and repairs skip rows that are locked; ends, and pages that nudge, lock rows in the order of numbers.
type Processor struct {
	Options

	slots slots
	woken chan struct{} // wakes the loop of claims

	caughtUpAt atomic.Pointer[time.Time] // when the last claim began that left nothing due; nil where the next one reads all

	// Of claims alone.
	committedAt  time.Time       // when a claim was committed; zero after a failed or slow one
	readAllAt    time.Time       // when a claim that read all due times was last not full, or failed
	crowd        map[string]bool // partitions of full claims: while messages are due all the time, some claims leave them out
	crowdRests   time.Time       // until then none leaves them out
	patientUntil time.Time       // others are not taken over before, after an outage of the database

	// Of its repairs, see endRepair.
	repairsAt     time.Time     // when the next one is due
	repairTook    time.Duration // the last one; 0 if it was a takeover alone
	repairRefused bool          // the last one was
	repairedKey   string        // keys up to it were looked at
}

var (
	errLost     = errors.New("the message was taken over")
	errDraining = errors.New("the program stops")
)

const (
	pollEvery        = time.Second
	minClaimInterval = 10 * time.Millisecond
	claimOverlap     = 2 * time.Second // a message may be committed later than its due time
	releaseTime      = 5 * time.Second // that handlers have after Drain
	crowdRest        = 10              // the pause after a claim that left out all of the crowd, in multiples of its time
)

// New makes a processor.
func New(o Options) (*Processor, error) {
	if o.DB == nil || o.Handle == nil || o.Receiver == "" || len(o.Receiver) > maxLength {
		return nil, fmt.Errorf("inbox: a processor needs a DB, a Handle and a Receiver of 1 to %d bytes", maxLength)
	}
	host, _ := os.Hostname() // empty where unknown
	o.Holder = cmp.Or(o.Holder, fmt.Sprintf("%s:%d", host, os.Getpid())) + "/" + rand.Text()[:8]
	o.Concurrency, o.Drain = cmp.Or(o.Concurrency, 16), cmp.Or(o.Drain, 10*time.Second)
	o.Log = cmp.Or(o.Log, slog.Default())
	q := &o.Policy
	q.Lease, q.GiveUpAfter = cmp.Or(q.Lease, 3*time.Second), cmp.Or(q.GiveUpAfter, 72*time.Hour)
	q.MaxAttempts = cmp.Or(q.MaxAttempts, 12)
	q.BackoffBase = cmp.Or(q.BackoffBase, 200*time.Millisecond)
	q.BackoffCap = max(cmp.Or(q.BackoffCap, time.Minute), q.BackoffBase)
	p := &Processor{Options: o, woken: make(chan struct{}, 1), crowd: map[string]bool{}}
	p.slots.total, p.slots.running = o.Concurrency, map[*Delivery]bool{}
	return p, nil
}

// Pause stops the start of messages: of all, or of those partitions. It replaces what was
// paused before; Pause(false) resumes, within a second. Messages that run continue.
func (p *Processor) Pause(all bool, partitions ...string) {
	p.slots.change(func() { p.slots.paused, p.slots.pausedIn = all, partitions })
}

// Run is called once. It claims and handles messages until ctx ends. Then it claims no more, lets handlers continue for
// at most Drain, ends the contexts of the others, releases their messages, and returns nil. A claim that has not ended
// 5 s later, or a handler that ignores its context, is an error: others take over their messages.
//
// It claims when the next message is due, when Wake receives, when a handler has ended for which another message waits,
// and once a second, but never sooner than 10 ms after the claim before began, or twice as long as that took. Each page
// that is received claims too, at any time. Under a backlog some claims skip the partitions of the full claims before.
func (p *Processor) Run(ctx context.Context) error {
	alive, die := context.WithCancel(context.WithoutCancel(ctx))
	var beating sync.WaitGroup
	beating.Go(func() {
		for due := time.Tick(max(1, p.Policy.Lease/3)); ; p.beat(alive) {
			select {
			case <-alive.Done():
				return
			case <-due: // at once after a slow beat
			}
		}
	})
	beating.Go(func() { p.hear(ctx) })
	defer beating.Wait()
	defer die()
	p.slots.change(func() { p.slots.open = true })
	p.committedAt = time.Now() //nolint:forbidigo // it decides only when others are taken over
	p.slots.active.Go(func() { p.claims(ctx) })
	<-ctx.Done()
	return p.drain()
}

// claims is the loop of claims. A commit with a long result may return after its deadline, so drain bounds the wait for it.
func (p *Processor) claims(ctx context.Context) {
	loop.Run(ctx, p.Log.With("receiver", p.Receiver), "claim failed, it is retried until it succeeds", func(ctx context.Context) (time.Duration, error) {
		took, next, err := p.tick(ctx)
		if least := max(minClaimInterval-took, took); err == nil && loop.Pause(ctx, least, nil) {
			loop.Pause(ctx, next-least, p.woken) // the rings until now are one: a second claim would find nothing, and delay the next
		}
		return 0, err
	})
}

// hear rings for the loop when Wake receives, until that is closed.
func (p *Processor) hear(ctx context.Context) {
	for open := true; open && ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case _, open = <-p.Wake:
			p.slots.missed.Add(1)
			loop.Ring(p.woken)
		}
	}
}

// readNext reads how long it is to the next due time, at most $2.
const readNext = `
-- inbox.readNext
select least((select due_at from inbox where receiver = $1 and status = 'pending' and first and due_at > now() order by due_at limit 1) - now(), $2::interval)`

// tick repairs what others left, once a second, or less often where that takes long, and claims, in one
// transaction. It returns how long it took, and when the next message is due; 0 if more may be due now.
func (p *Processor) tick(ctx context.Context) (took, next time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout())
	defer cancel()
	began, b := time.Now(), &pgx.Batch{}        //nolint:forbidigo // it decides only what is read
	if began.Sub(p.committedAt) > p.timeout() { // after an outage all holders may be silent: each gets time to register again
		p.patientUntil = began.Add(2 * p.timeout())
	}
	repairs := !began.Before(p.repairsAt)
	whole := repairs && !p.repairRefused
	if repairs {
		p.queueRepair(b, whole)
	}
	var leftOut []string
	all := began.Sub(p.readAllAt) >= pollEvery                             // a commit may have taken longer than claimOverlap
	if all && p.caughtUpAt.Swap(nil) == nil && began.After(p.crowdRests) { // messages were due all the time
		leftOut = slices.Collect(maps.Keys(p.crowd))
	}
	b.Queue(readNext, p.Receiver, pollEvery).QueryRow(func(row pgx.Row) error { return row.Scan(&next) })
	g := p.slots.reserve(p.Concurrency, false, leftOut)
	claimed, more, err := p.commitClaim(ctx, b, g)
	ended := time.Now() //nolint:forbidigo // as above
	took = ended.Sub(began)
	switch {
	case more:
		for _, d := range claimed {
			p.crowd[d.Partition] = true
		}
	case err == nil && len(g.except) == 0:
		p.caughtUpAt.Store(new(began.Add(-claimOverlap)))
	}
	if all && !more {
		p.readAllAt = ended
		clear(p.crowd)
	}
	if len(leftOut) > 0 && g.slots > 0 {
		p.crowdRests = ended.Add(took)
		if !more {
			p.crowdRests = ended.Add(crowdRest * took)
		}
	}
	if repairs { // or it has failed to: the next ticks claim, whatever the repair has met
		p.endRepair(ended, took, err)
	}
	p.committedAt = ended
	if away := errors.Is(err, groupcommit.ErrUnknown) || errors.Is(err, groupcommit.ErrNotCommitted) || took > p.timeout(); away && !whole {
		p.committedAt = time.Time{} // a whole repair may be what took so long
	}
	if err != nil || g.slots > 0 && len(leftOut) > 0 || more && g.spare > 0 {
		return took, 0, err
	}
	return took, min(next, p.repairsAt.Sub(ended)), nil
}

// drain waits for the handlers for Drain, cancels them, and waits on for releaseTime.
func (p *Processor) drain() error {
	p.slots.change(func() { p.slots.open = false })
	ended := make(chan struct{})
	go func() { p.slots.active.Wait(); close(ended) }()
	var running []*Delivery
	for _, pause := range []time.Duration{p.Drain, releaseTime} {
		select {
		case <-ended:
			return nil
		case <-time.After(pause):
		}
		running, _ = p.slots.held()
		for _, d := range running {
			d.cancel(errDraining)
		}
	}
	return fmt.Errorf("inbox: of %s, a claim has not ended, or some of %d handlers ignore the end of their context", p.Receiver, len(running))
}
