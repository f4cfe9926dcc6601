package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
)

// A message that no handler can carry out is parked; somebody sees to it, and the
// message behind it goes on.
func ExampleRetry() {
	db, end := testdb.Example()
	defer end()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	b := &pgx.Batch{}
	for _, id := range []string{"m1", "m2"} {
		if err := inbox.Accept(b, "shop", inbox.Message{ID: id, Type: "order.placed", OrderingKey: "order 1"}); err != nil {
			panic(err)
		}
	}
	if err := db.Commit(ctx, b); err != nil {
		panic(err)
	}

	handled, repaired := make(chan string), atomic.Bool{}
	shop := &inbox.Processor{
		DB: db, Receiver: "shop", Holder: "worker 1", Concurrency: 1, Poll: time.Millisecond, Drain: time.Second,
		Log: slog.New(slog.DiscardHandler),
		Policy: inbox.Policy{
			Lease: 3 * time.Second, MaxAttempts: 12, GiveUpAfter: time.Hour,
			BackoffBase: time.Millisecond, BackoffCap: time.Second,
		},
		Handle: func(_ context.Context, d *inbox.Delivery) error {
			defer func() { handled <- d.ID }()
			if !repaired.Load() {
				return &inbox.ParkError{Err: errors.New("the address is missing")}
			}
			return nil
		},
	}
	stopped := make(chan struct{})
	go func() { shop.Run(ctx); close(stopped) }()
	<-handled

	var parked []inbox.Entry
	for len(parked) == 0 { // its handler has returned, but perhaps not its commit
		var err error
		if parked, err = inbox.List(ctx, db, inbox.StatusDead, 0, 10); err != nil {
			panic(err)
		}
	}
	fmt.Println(parked[0].MessageID, parked[0].LastError, "- and behind it:", parked[0].Behind)

	repaired.Store(true)
	fmt.Println(inbox.Retry(ctx, db, parked[0].Number, "ada"))
	fmt.Println(<-handled, <-handled)
	fmt.Println(inbox.Retry(ctx, db, parked[0].Number, "bob"))
	cancel()
	<-stopped
	// Output:
	// m1 parked: the address is missing - and behind it: 1
	// <nil>
	// m1 m2
	// retry message 1: the message is not parked
}
