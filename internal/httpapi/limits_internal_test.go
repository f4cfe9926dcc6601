package httpapi

import "testing"

// TestCapacity_forgetsWhoHasLeft: callers choose their addresses, so the memory of those that have
// left would have no bound.
func TestCapacity_forgetsWhoHasLeft(t *testing.T) {
	t.Parallel()
	a := newCapacity(2, 1)
	leave, err := a.enter("m")
	if err != nil {
		t.Fatal(err)
	}
	leave()
	if a.all != 0 || len(a.of) != 0 {
		t.Errorf("%d places and %v are still taken", a.all, a.of)
	}
}
