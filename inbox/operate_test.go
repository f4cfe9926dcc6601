package inbox_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// putDeadLetters puts three messages of a key and one of another into the inbox;
// the first of the key and the other are dead letters.
func putDeadLetters(t *testing.T, db *postgres.DB) {
	t.Helper()
	put(t, db, "m1", "k")
	put(t, db, "m2", "k")
	put(t, db, "m3", "k")
	put(t, db, "n1", "l")
	write(t, db, `
update inbox
   set status = 'dead', attempts = 3, deaths = 2, waits = 4, fence = 5, waiting_since = clock_timestamp(), holder = 'h',
       last_error = 'a human decides', due_at = clock_timestamp() + interval '1 hour'
 where message_id in ('m1', 'n1')`)
}

// noting is a handler that notes what it gets.
func noting(d *diary) inbox.Handler {
	return func(_ context.Context, m *inbox.Delivery) error {
		d.note("%s", m.ID)
		return nil
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	putDeadLetters(t, db)
	first, other := number(t, db, "m1"), number(t, db, "n1")
	want := slices.Repeat([]inbox.Entry{{Receiver: "r", Status: inbox.StatusDead, Attempts: 3, Deaths: 2, Waits: 4, Holder: "h", LastError: "a human decides"}}, 2)
	want[0].Number, want[0].MessageID, want[0].OrderingKey, want[0].Behind = first, "m1", "k", 2
	want[1].Number, want[1].MessageID, want[1].OrderingKey = other, "n1", "l"
	times := cmpopts.IgnoreFields(inbox.Entry{}, "ReceivedAt", "DueAt")
	for name, page := range map[string]struct {
		status inbox.Status
		after  int64
		limit  int
		want   []inbox.Entry
	}{
		"dead letters":    {inbox.StatusDead, 0, 10, want},
		"the first page":  {inbox.StatusDead, 0, 1, want[:1]},
		"the second page": {inbox.StatusDead, first, 1, want[1:]},
		"after the last":  {inbox.StatusDead, other, 1, nil},
		"discarded":       {inbox.StatusDiscarded, 0, 10, nil},
		"the history":     {inbox.StatusDone, 0, 10, nil},
	} {
		got, err := inbox.List(t.Context(), db, inbox.Filter{Status: page.status}, page.after, page.limit)
		if diff := cmp.Diff(page.want, got, times, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	testdb.Must(t, send(t.Context(), db, inbox.Message{ID: "m1", Payload: []byte("\x00\xff"), Metadata: map[string]string{"a": "b"}}))
	got, err := inbox.Show(t.Context(), db, number(t, db, "m1"))
	testdb.Must(t, err)
	if got.Status != inbox.StatusPending || string(got.Payload) != "\x00\xff" || string(got.Metadata) != `{"a": "b"}` || got.ReceivedAt.IsZero() {
		t.Errorf("the message is %+v", got)
	}
}

func TestRetry_beginsAnewInTheOrderOfTheKey(t *testing.T) {
	t.Parallel()
	db := stocked(t)
	putDeadLetters(t, db)
	testdb.Must(t, inbox.Retry(t.Context(), db, number(t, db, "m1"), "ada"))
	testrun.Row(t, db, `select status = 'pending' and attempts = 0 and deaths = 0 and waits = 0 and waiting_since is null
		and due_at <= clock_timestamp() and decided_by = 'ada' and decided_at <= clock_timestamp() from inbox where message_id = 'm1'`)
	var order diary
	start(t, processor(t, db, noting(&order)))
	testrun.Row(t, db, `select bool_and(status = 'done') from inbox where ordering_key = 'k'`)
	testrun.Same(t, "order", "m1 m2 m3", order.String())
	if got, err := inbox.Show(t.Context(), db, number(t, db, "m1")); err != nil || got.DecidedBy != "ada" || got.DecidedAt == nil {
		t.Errorf("when it is done, who retried it is %+v, %v", got, err)
	}
}

// What a holder of long ago still commits is refused. That the key goes on is in TestModel.
func TestDiscard_endsForEver(t *testing.T) {
	t.Parallel()
	db := stocked(t, "m1@k")
	h := newHung(db)
	start(t, processor(t, db, h.handle))
	testrun.Receive(t, "the holder", h.begun)
	write(t, db, `update inbox set status = 'dead', last_error = 'odd'`) // its fence is still the newest
	testdb.Must(t, inbox.Discard(t.Context(), db, number(t, db, "m1"), "ada"))
	close(h.finish)
	if err := testrun.Receive(t, "the commit", h.ended); !inbox.IsLost(err) {
		t.Errorf("the holder's commit ended with %v", err)
	}
	testrun.Row(t, db, `select status = 'discarded' and not exists (select from merchants) from inbox`)
	entries, err := inbox.List(t.Context(), db, inbox.Filter{Status: inbox.StatusDiscarded}, 0, 10)
	if err != nil || len(entries) != 1 || entries[0].DecidedBy != "ada" || entries[0].FinishedAt == nil || entries[0].LastError != "odd" {
		t.Errorf("discarded messages: %+v, %v", entries, err)
	}
}

func TestRetryAndDiscard_refuseWhatIsNoDeadLetter(t *testing.T) {
	t.Parallel()
	for name, decide := range map[string]func(context.Context, postgres.Querier, int64, string) error{
		"retry": inbox.Retry, "discard": inbox.Discard,
	} {
		t.Run(name, func(t *testing.T) {
			db := fresh(t)
			putDeadLetters(t, db)
			write(t, db, `update inbox set status = 'done', first = false, done_fence = fence where message_id = 'm3'`)
			for _, id := range []string{"m2", "m3"} {
				if err := decide(t.Context(), db, number(t, db, id), "ada"); !errors.Is(err, inbox.ErrNotDeadLetter) {
					t.Errorf("%s: %v, want ErrNotDeadLetter", id, err)
				}
			}
			if err := decide(t.Context(), db, -1, "ada"); !errors.Is(err, inbox.ErrNoMessage) {
				t.Errorf("a message that is none: %v, want ErrNoMessage", err)
			}
			if err := decide(t.Context(), db, number(t, db, "m1"), ""); groupcommit.Constraint(err) != "inbox_decision_has_actor" {
				t.Errorf("a decision without an actor: %v", err)
			}
			if err := decide(t.Context(), db, number(t, db, "m1"), "ada"); err != nil {
				t.Error(err)
			}
			if err := decide(t.Context(), db, number(t, db, "m1"), "bob"); !errors.Is(err, inbox.ErrNotDeadLetter) {
				t.Errorf("the second decision: %v, want ErrNotDeadLetter", err)
			}
			testrun.Row(t, db, `select decided_by = 'ada' from inbox where message_id = 'm1'`)
			testrun.Row(t, db, `select count(*) = 1 from inbox where decided_by is not null`)
		})
	}
}

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
