package inbox_test

import (
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

// A queue behind one key, and what the planner makes of it, holds up no other.
func TestALongQueueBehindOneKeyHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	testdb.Long(t, "it writes thousands of messages")
	for name, before := range map[string]string{
		"on a table that was never analyzed":                     `select 1`,
		"on one that was analyzed when most was of that one key": `analyze inbox`,
	} {
		t.Run(name, func(t *testing.T) {
			db := fresh(t)
			putMany(t, db, `'hot' || n`, `'hot'`, 400)
			write(t, db, before)
			putMany(t, db, `'cold' || n`, `'cold' || n`, 50)
			start(t, processor(db, answer(nil)))
			await.Row(t, db, `select bool_and(status = 'done') from inbox where ordering_key <> 'hot'`)
			put(t, db, "late", "late")
			await.Row(t, db, `select status = 'done' from inbox where message_id = 'late'`)
		})
	}
}
