package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

// broker is a publisher that keeps what it is sent.
type broker struct {
	before func(m *message.Message) error // of each message

	mu       sync.Mutex
	stored   []string
	metadata message.Metadata
}

func (b *broker) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		if b.before != nil {
			if err := b.before(m); err != nil {
				return err
			}
		}
		b.mu.Lock()
		b.stored, b.metadata = append(b.stored, m.UUID), m.Metadata
		b.mu.Unlock()
	}
	return nil
}

func (*broker) Close() error { return nil }

// await waits until the broker has the first copies of numbered messages, in their order.
func (b *broker) await(t *testing.T, n int) {
	t.Helper()
	want := numbered(n)
	testrun.Progress(t, fmt.Sprintf("%d messages come", n), func() (string, bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		var got []string
		for _, id := range b.stored {
			if !slices.Contains(got, id) {
				got = append(got, id)
			}
		}
		if len(got) > len(want) || !slices.Equal(got, want[:len(got)]) {
			t.Fatalf("messages (-want +got):\n%s", cmp.Diff(want, got))
		}
		return fmt.Sprintf("%d came", len(got)), len(got) == n
	})
}

// forward runs a forwarder until the test ends.
func forward(t *testing.T, from message.Subscriber, to message.Publisher) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- outbox.Forward(ctx, from, topic, to) }()
	t.Cleanup(func() {
		cancel()
		if err := testrun.Receive(t, "the forwarder's end", ended); err != nil {
			t.Error(err)
		}
		testdb.Must(t, from.Close())
	})
}

// An error or a panic of the publisher costs repetitions, but neither order nor a message.
func TestForward_publishesAgainWhatThePublisherRefused(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func() error{
		"by an error": func() error { return errors.New("planted") },
		"by a panic":  func() error { panic("planted") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t)
			publish(t, db, numbered(10)...)
			failures := 0
			to := &broker{before: func(m *message.Message) error {
				if m.UUID == "m0004" && failures < 3 {
					failures++
					return fail()
				}
				return nil
			}}
			forward(t, outbox.NewSubscriber(db.Pool(), outbox.Options{}), to)
			to.await(t, 10)
			wantEmpty(t, db)
			testrun.Same(t, "metadata", message.Metadata{"type": "letter", "ordering_key": "k"}, to.metadata)
		})
	}
}

func TestForward_returnsTheErrorOfASubscriptionAndItsEnd(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	closed := outbox.NewSubscriber(db.Pool(), outbox.Options{})
	testdb.Must(t, closed.Close())
	if err := outbox.Forward(t.Context(), closed, topic, &broker{}); err == nil || !strings.HasPrefix(err.Error(), "subscribe to letters: ") {
		t.Errorf("a closed subscriber: %v", err)
	}
	from := outbox.NewSubscriber(db.Pool(), outbox.Options{})
	publish(t, db, "m0001")
	stop := sync.OnceFunc(func() { go func() { _ = from.Close() }() })
	to := &broker{before: func(*message.Message) error { stop(); return nil }}
	if err := outbox.Forward(t.Context(), from, topic, to); err == nil || err.Error() != "the subscription has ended" {
		t.Errorf("a subscription that ends: %v", err)
	}
}
