package inbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
)

// wantHistory waits until a condition holds for the message m1.
func wantHistory(t *testing.T, db *postgres.DB, condition string) {
	t.Helper()
	await.Row(t, db, `select coalesce(`+condition+`, false) from inbox where message_id = 'm1'`)
}

func TestHistory(t *testing.T) {
	t.Parallel()

	t.Run("a message that is handled at the first attempt has none", func(t *testing.T) {
		db := fresh(t, "m1@k")
		start(t, processor(db, answer(nil)))
		wantHistory(t, db, `status = 'done' and history is null and claimed_at between received_at and finished_at`)
	})

	t.Run("a takeover names the holder that went silent and the end of its lease", func(t *testing.T) {
		db := fresh(t)
		zombie, heir := silenced(t, db)
		zombie.loses(t)
		heir.finishes(t)
		wantHistory(t, db, `holder = 'heir' and jsonb_array_length(history) = 1
			and history @> '[{"fence": 1, "holder": "test"}]'
			and (history -> 0 ->> 'claimed_at')::timestamptz >= received_at
			and (history -> 0 ->> 'lease_ended_at')::timestamptz < claimed_at - interval '1 day'
			and (history -> 0 ->> 'at')::timestamptz - claimed_at < interval '1 minute'`)
	})

	t.Run("an attempt that failed names its error", func(t *testing.T) {
		db := fresh(t, "m1@k")
		start(t, processor(db, answer(errors.New("no "+strings.Repeat("o", 300)))))
		wantHistory(t, db, `status = 'pending' and length(history -> 0 ->> 'error') = 200 and length(last_error) > 300
			and history @> '[{"fence": 1, "holder": "test"}]' and history -> 0 ->> 'lease_ended_at' is null`)
	})

	t.Run("of many claims the oldest and the newest stay", func(t *testing.T) {
		db := fresh(t, "m1@k")
		write(t, db, `update inbox set fence = 16, history = (select jsonb_agg(jsonb_build_object('fence', n)) from generate_series(1, 16) n)`)
		start(t, processor(db, answer(errors.New("no"))))
		wantHistory(t, db, `(select string_agg(h ->> 'fence', ' ') from jsonb_array_elements(history) h)
			= '1 2 3 4 5 6 7 8 10 11 12 13 14 15 16 17'`)
	})

	t.Run("a dropped delivery has a time", func(t *testing.T) {
		db := fresh(t)
		for range 2 {
			accept(t, db, note("m1", "payload"))
		}
		wantHistory(t, db, `duplicates = 1 and duplicated_at >= received_at`)
	})
}
