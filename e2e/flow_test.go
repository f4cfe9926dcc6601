package e2e_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/await"
)

// flow is traffic in flight: clients that send one charge after another and retry each
// until it is answered.
type flow struct {
	requests []request
	answered atomic.Int64
	all      sync.WaitGroup
}

// flowing starts n charges, each under a key of its own, by some clients at a
// time. The methods of payment come in turn.
func (d *deployment) flowing(t *testing.T, n, clients int, methods ...string) *flow {
	t.Helper()
	f := &flow{}
	for i := range n {
		f.requests = append(f.requests, request{key: "key-" + unique(), body: newOrder(methods[i%len(methods)]).body(t)})
	}
	ctx := t.Context()
	work := make(chan request, n)
	for _, r := range f.requests {
		work <- r
	}
	close(work)
	for range clients {
		f.all.Go(func() {
			for r := range work {
				got, err := d.client.insist(ctx, r)
				f.answered.Add(1)
				if err != nil || got.Status != http.StatusAccepted {
					t.Errorf("%s was answered %d %s, %v", r.key, got.Status, got.Body, err)
				}
			}
		})
	}
	return f
}

// awaitAnswered waits until so many charges were answered.
func (f *flow) awaitAnswered(t *testing.T, n int) {
	t.Helper()
	await.True(t, fmt.Sprintf("%d of %d charges are answered", n, len(f.requests)), func() bool {
		return f.answered.Load() >= int64(n)
	})
}

// finish waits for all answers, and asks for each of them once more.
func (f *flow) finish(t *testing.T, d *deployment) {
	t.Helper()
	f.all.Wait()
	for _, r := range f.requests {
		if _, err := d.client.insist(t.Context(), r); err != nil {
			t.Error(err)
		}
	}
}
