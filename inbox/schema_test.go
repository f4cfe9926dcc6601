package inbox_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestNew_refuses(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for name, o := range map[string]inbox.Options{
		"no database":     {Receiver: "r", Handle: answer(nil)},
		"no handler":      {Receiver: "r", DB: db},
		"no receiver":     {Handle: answer(nil), DB: db},
		"a long receiver": {Handle: answer(nil), DB: db, Receiver: strings.Repeat("x", inbox.MaxLength+1)},
	} {
		if _, err := inbox.New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestDeleteExpired(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for _, status := range []string{"pending", "running", "done", "dead", "discarded"} {
		for age := range 4 {
			write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, first, done_fence, decided_by, decided_at, finished_at)
				values ('r', $1 || $2, $1 || $2, '', '', '{}', '', $1, $1 = 'running', case $1 when 'done' then 0 end,
				        case $1 when 'discarded' then 'ada' end, case $1 when 'discarded' then now() end, now() - make_interval(hours => $2::int))`, status, strconv.Itoa(age))
		}
	}
	locked := testdb.Begin(t, db.Pool(), `select from inbox where message_id = 'done3' for update`)
	var deleted []int
	for range 3 {
		n, err := inbox.DeleteExpired(t.Context(), db, 30*time.Minute, 1)
		testdb.Must(t, err)
		deleted = append(deleted, n)
	}
	testrun.Same(t, "deleted", []int{1, 1, 0}, deleted)
	testdb.Must(t, locked.Rollback(t.Context()))
	n, err := inbox.DeleteExpired(t.Context(), db, 30*time.Minute, 10)
	testdb.Must(t, err)
	testrun.Same(t, "deleted", 1, n)
	testrun.Same(t, "left", "dead4 discarded4 done1 pending4 running4",
		testdb.One[string](t, db, `select string_agg(s || n, ' ' order by s) from (select status s, count(*) n from inbox group by 1) x`))
}
