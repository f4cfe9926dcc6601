package e2e_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"
)

// endPatience bounds the wait for whatever has to happen by itself: a charge's
// end, also after a crash.
const endPatience = time.Minute

// eventually waits until something holds. The test ends here if it does not.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	if !within(endPatience, holds) {
		t.Fatalf("not within %s: %s", endPatience, what)
	}
}

// within asks until the answer is yes or the time is over.
func within(patience time.Duration, holds func() bool) bool {
	end := time.NewTimer(patience)
	defer end.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-end.C:
			return false
		}
	}
	return true
}

// next waits for what another goroutine sends. The test ends here if nothing
// comes.
func next[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	timer := time.NewTimer(endPatience)
	defer timer.Stop()
	select {
	case v := <-from:
		return v
	case <-timer.C:
		t.Fatalf("not within %s: %s", endPatience, what)
		panic("unreachable")
	}
}

// pause waits, or less if ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// unique is a word that nobody has used. It has a letter at each end: digits alone
// could pass for a card number.
func unique() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return "u" + hex.EncodeToString(b[:]) + "q"
}

// long leaves a test out where tests are to be short: one charge from end to end and
// one worker that is killed are enough there.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not run in short mode: it starts programs of its own for seconds")
	}
}

// spaced is words with a space between them.
func spaced(words ...any) string { return strings.TrimSuffix(fmt.Sprintln(words...), "\n") }
