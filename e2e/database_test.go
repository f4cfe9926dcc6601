package e2e_test

import (
	"testing"

	"github.com/payonce/payonce/internal/postgres/local"
)

// TestDatabase shuts the server down at once, without a checkpoint, while
// charges flow, and kills its first process. That what was accepted is there,
// once, is what every world is asked in the end.
func TestDatabase(t *testing.T) {
	t.Parallel()
	long(t)
	t.Run("a server that stops at once loses nothing it acknowledged", func(t *testing.T) {
		t.Parallel()
		server, at := ownServer(t, local.Options{Fsync: true})
		w := newWorld(t, setup{apis: 2, workers: 2, server: at})
		n, stops := 120, 3
		f := w.flowing(t, n, 16, visa, cardDeclined, visa)
		for i := range stops {
			f.awaitAnswered(t, (i+1)*n/(stops+1))
			stopServer, how := server.Restart, "immediate shutdown"
			if i == 1 {
				stopServer, how = server.Crash, "SIGKILL"
			}
			if err := stopServer(t.Context()); err != nil {
				t.Fatalf("%s: %v", how, err)
			}
		}
		f.finish(t, w)
		if f.retries.Load() == 0 {
			t.Error("the stops left no request without an answer: they showed nothing")
		}
		t.Logf("%d charges, %d stops, %d sendings without a definitive answer", n, stops, f.retries.Load())
	})
}
