package e2e_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/robustness/traffic"
)

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) { _ = traffic.Wait(ctx, d) }

// unique returns a word that no other call returned. It has a letter at each end:
// digits alone could pass for a card number.
func unique() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return "u" + hex.EncodeToString(b[:]) + "q"
}

// spaced joins words with spaces.
func spaced(words ...any) string { return strings.TrimSuffix(fmt.Sprintln(words...), "\n") }
