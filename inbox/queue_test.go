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
			write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
				select 'r', 'hot' || n, 'hot', 't', '', '{}', '' from generate_series(1, 400) n`)
			write(t, db, before)
			write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
				select 'r', 'cold' || n, 'cold' || n, 't', '', '{}', '' from generate_series(1, 50) n`)
			start(t, processor(db, answer(nil)))
			await.Row(t, db, `select bool_and(status = 'done') from inbox where ordering_key <> 'hot'`)
			put(t, db, "late", "late")
			await.Row(t, db, `select status = 'done' from inbox where message_id = 'late'`)
		})
	}
}
