package inbox_test

import (
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

// random is text that does not compress, which an index would hide.
func random(length int) string {
	var text strings.Builder
	for text.Len() < length {
		text.WriteString(rand.Text())
	}
	return text.String()[:length]
}

func TestAccept(t *testing.T) {
	t.Parallel()

	t.Run("the longest id is kept, and without a key is the key", func(t *testing.T) {
		db := fresh(t)
		accept(t, db, inbox.Message{ID: random(inbox.MaxLength)})
		await.Row(t, db, `select length(message_id) = 255 and ordering_key = message_id and payload = '' and metadata = '{}' from inbox`)
	})

	t.Run("a repetition is counted, and another payload is quarantined", func(t *testing.T) {
		db := fresh(t)
		isNew, duplicate, aside := inbox.Reception{New: 1}, inbox.Reception{Duplicates: 1}, inbox.Reception{Quarantined: 1}
		for i, want := range []inbox.Reception{isNew, duplicate, aside, aside, duplicate} {
			if got := accept(t, db, note("m1", "xxyyx"[i:i+1])); got != want {
				t.Errorf("delivery %d is received as %+v, want %+v", i, got, want)
			}
		}
		wantReceived(t, db, map[string]int{"r m1": 2})
		wantAside(t, db, "r m1=y")
	})

	t.Run("the same message as one that came by the outbox is the same", func(t *testing.T) {
		db := fresh(t)
		post(t, db, letter("m1", "x"))
		receive(t, db, "r")
		awaitReceived(t, db)
		accept(t, db, note("m1", "x"))
		accept(t, db, note("m2", "x"))
		post(t, db, letter("m2", "x"))
		awaitReceived(t, db)
		wantReceived(t, db, map[string]int{"r m1": 1, "r m2": 1})
	})

	t.Run("a batch that rolls back has received nothing", func(t *testing.T) {
		db := fresh(t)
		b := &pgx.Batch{}
		inbox.Accept(b, "r", note("m1", "x"))
		b.Queue(`select 1 / 0`)
		if err := db.Commit(t.Context(), b); err == nil {
			t.Fatal("it was committed")
		}
		wantReceived(t, db, map[string]int{})
	})
}

// TestAccept_besideRivals accepts the same messages in several goroutines at once: none
// is refused, and each delivery is counted once.
func TestAccept_besideRivals(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	const rivals, messages = 8, 30
	var all sync.WaitGroup
	for range rivals {
		all.Go(func() {
			for i := range messages {
				b := &pgx.Batch{}
				inbox.Accept(b, "r", note("m"+strconv.Itoa(i), "x"))
				if err := db.Commit(t.Context(), b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	want := map[string]int{}
	for i := range messages {
		want["r m"+strconv.Itoa(i)] = rivals - 1
	}
	wantReceived(t, db, want)
	if n := quarantined(t, db); n != 0 {
		t.Errorf("%d quarantined", n)
	}
}
