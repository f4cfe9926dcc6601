package inbox

import "context"

// Observer is told what becomes of messages, for whoever counts them. Any of its
// functions may be nil. They are called by many at once and must return at once;
// nothing depends on them.
type Observer struct {
	// Attempting is called before a message is worked on. The handler runs, and
	// the end of the claim is written, in the context that it returns, which must
	// come from the one that it is given; what it returns besides is told the end.
	Attempting func(context.Context, Delivery) (within context.Context, attempted func(End))
	// Claimed is told how many messages a claim has taken, and how many of them
	// from a holder that had died or gone silent.
	Claimed func(messages, deaths int)
	// Handling is called before the handler, and what it returns after it.
	Handling func() (handled func())
	// Ended is told how a claim ended.
	Ended func(End)
}

// End is how a claim of a message ended, as its holder knows it.
type End string

// The ends of claims. A message that failed or waited may be parked by that: see
// Policy.
const (
	EndDone     End = "done"
	EndFailed   End = "failed"   // by an error or a panic
	EndWaiting  End = "waiting"  // for something outside, or for the store
	EndParked   End = "parked"   // by what the handler said, or because its holders died
	EndReleased End = "released" // the program stops
	EndLost     End = "lost"     // somebody else holds it, or has finished it
	EndLeft     End = "left"     // the store did not take the end; the lease runs out
)

// Ends are all of them.
func Ends() []End {
	return []End{EndDone, EndFailed, EndWaiting, EndParked, EndReleased, EndLost, EndLeft}
}

func (o Observer) claimed(messages []claimed) {
	if o.Claimed == nil || len(messages) == 0 {
		return
	}
	deaths := 0
	for _, m := range messages {
		if m.deaths > 0 {
			deaths++
		}
	}
	o.Claimed(len(messages), deaths)
}

func (o Observer) attempting(ctx context.Context, d Delivery) (context.Context, func(End)) {
	if o.Attempting == nil {
		return ctx, func(End) {}
	}
	return o.Attempting(ctx, d)
}

func (o Observer) handling() (handled func()) {
	if o.Handling == nil {
		return func() {}
	}
	return o.Handling()
}

func (o Observer) ended(e End) {
	if o.Ended != nil {
		o.Ended(e)
	}
}

// Reception is what became of a message, or of a page of them: deliveries, of which
// a message has one for each of its receivers.
type Reception struct {
	New        int // kept
	Duplicates int // known, with the same payload: counted
	Aside      int // known, with another payload: in quarantine
}
