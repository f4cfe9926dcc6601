package console

import (
	"testing"
	"time"
)

// TestShort: what takes less than half a millisecond is not shown as nothing.
func TestShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 412_345 * time.Nanosecond: "410µs", 1_499 * time.Microsecond: "1ms", 61_000_400 * time.Microsecond: "1m1s",
	} {
		if got := short(d); got != want {
			t.Errorf("%d ns is shown as %s, want %s", d, got, want)
		}
	}
}
