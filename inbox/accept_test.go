package inbox_test

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
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

	t.Run("a key that no index can hold stays one key", func(t *testing.T) {
		db := fresh(t)
		long := random(6000)
		for i, key := range []string{long, long + "x", long} {
			accept(t, db, inbox.Message{ID: strconv.Itoa(i), OrderingKey: key})
		}
		keys := testdb.One[[]string](t, db, `select array_agg(ordering_key order by message_id) from inbox`)
		hash := func(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }
		testrun.Same(t, "keys", []string{hash(long), hash(long + "x"), hash(long)}, keys)
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
}
