package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// acceptance is a charge whose requests were answered 202.
type acceptance struct {
	key      string
	body     []byte
	ids      []string // of each answer
	sent, at time.Time
}

// load sends charges, each twice at once, until it is stopped.
type load struct {
	merchant *harness.Client
	sending  sync.WaitGroup

	mu       sync.Mutex
	accepted []acceptance
	refused  []harness.Answer
}

const (
	interval   = 25 * time.Millisecond // between two charges
	duplicates = 2
)

// maxInFlight bounds the charges that are sent and not answered.
func maxInFlight() int {
	if *failovers > 0 {
		return 400
	}
	return 64
}

// run sends until stop is closed. What was sent is retried until it is answered, or the test
// ends.
func (l *load) run(t *testing.T, stop <-chan struct{}) {
	t.Helper()
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	slots := make(chan struct{}, maxInFlight())
	for {
		select {
		case <-stop:
			return
		case slots <- struct{}{}:
		}
		l.sending.Go(func() {
			l.send(t)
			<-slots
		})
		<-ticks.C
	}
}

func (l *load) send(t *testing.T) {
	t.Helper()
	a := acceptance{key: "key-" + unique(), body: newOrder(visa).body(t), sent: time.Now()}
	answers := l.merchant.PostAll(t.Context(), duplicates, "/v1/charges", a.key, a.body)
	a.at = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, got := range answers {
		if got.Status != http.StatusAccepted {
			l.refused = append(l.refused, got)
			continue
		}
		a.ids = append(a.ids, got.Member("id"))
	}
	if len(a.ids) > 0 {
		l.accepted = append(l.accepted, a)
	}
}

func (l *load) all() []acceptance {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.accepted)
}

// flow waits until so many more charges were accepted that were sent since.
func (l *load) flow(t *testing.T, n int) {
	t.Helper()
	since := time.Now()
	testrun.Progress(t, fmt.Sprintf("%d charges are accepted", n), func() (string, bool) {
		done := 0
		for _, a := range l.all() {
			if a.sent.After(since) {
				done++
			}
		}
		return strconv.Itoa(done), done >= n
	})
}

// gap is the longest time without an accepted charge since just before lost.
func gap(all []acceptance, lost time.Time) (longest time.Duration) {
	var last time.Time
	slices.SortFunc(all, func(a, b acceptance) int { return a.at.Compare(b.at) })
	for _, a := range all {
		if a.at.After(lost) && !last.IsZero() {
			longest = max(longest, a.at.Sub(last))
		}
		last = a.at
	}
	return longest
}
