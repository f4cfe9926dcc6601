package e2e_test

import "testing"

// TestWorker lets workers die, hang and meet a broken outside. The outcome of
// every charge stays what it would have been, once.
func TestWorker(t *testing.T) {
	t.Parallel()
	t.Run("a worker killed at any step is taken over", func(t *testing.T) {
		t.Parallel()
		killedAtAnyStep(t)
	})
	for name, test := range map[string]func(*testing.T){
		"a paused worker that wakes up after its lease does nothing": zombie,
		"SIGTERM releases what cannot be finished":                   releases,
		"faults of the provider and random kills change no outcome":  chaos,
		"charges wait while the provider is down":                    providerDown,
		"only the notification waits while the shop is down":         shopDown,
		"a message delivered again has no second effect":             redelivered,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			long(t)
			test(t)
		})
	}
}
