package deadletter_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/inbox/deadletter"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// put appends a message to the inbox of the receiver r in a commit of its own.
func put(t *testing.T, db *postgres.DB, m inbox.Message) {
	t.Helper()
	b := &pgx.Batch{}
	inbox.Append(b, "r", m)
	testdb.Must(t, db.Commit(t.Context(), b))
}

// putDeadLetters puts three messages of a key and one of another into the inbox;
// the first of the key and the other are dead letters.
func putDeadLetters(t *testing.T, db *postgres.DB) {
	t.Helper()
	put(t, db, inbox.Message{ID: "m1", OrderingKey: "k", Payload: []byte("\x00\xff"), Metadata: map[string]string{"a": "b"}})
	put(t, db, inbox.Message{ID: "m2", OrderingKey: "k"})
	put(t, db, inbox.Message{ID: "m3", OrderingKey: "k"})
	put(t, db, inbox.Message{ID: "n1", OrderingKey: "l"})
	testdb.Exec(t, db.Pool(), `
update inbox
   set status = 'dead', attempts = 3, deaths = 2, waits = 4, fence = 5, waiting_since = clock_timestamp(), holder = 'h',
       last_error = 'a human decides', due_at = clock_timestamp() + interval '1 hour'
 where message_id in ('m1', 'n1')`)
}

func number(t *testing.T, db *postgres.DB, id string) int64 {
	t.Helper()
	return testdb.One[int64](t, db, `select id from inbox where message_id = $1`, id)
}

func TestListAndShow(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	db := testdb.Reused(t)
	putDeadLetters(t, db)
	first, other := number(t, db, "m1"), number(t, db, "n1")
	want := slices.Repeat([]deadletter.Entry{{Receiver: "r", Status: deadletter.StatusDead, Attempts: 3, Deaths: 2, Waits: 4, Holder: "h", LastError: "a human decides"}}, 2)
	want[0].Number, want[0].MessageID, want[0].OrderingKey, want[0].Behind = first, "m1", "k", 2
	want[1].Number, want[1].MessageID, want[1].OrderingKey = other, "n1", "l"
	times := cmpopts.IgnoreFields(deadletter.Entry{}, "ReceivedAt", "DueAt")
	for name, page := range map[string]struct {
		status deadletter.Status
		after  int64
		limit  int
		want   []deadletter.Entry
	}{
		"dead letters":    {deadletter.StatusDead, 0, 10, want},
		"the first page":  {deadletter.StatusDead, 0, 1, want[:1]},
		"the second page": {deadletter.StatusDead, first, 1, want[1:]},
		"after the last":  {deadletter.StatusDead, other, 1, nil},
		"discarded":       {deadletter.StatusDiscarded, 0, 10, nil},
		"the history":     {deadletter.StatusDone, 0, 10, nil},
	} {
		got, err := deadletter.List(t.Context(), db, deadletter.Filter{Status: page.status}, page.after, page.limit)
		if diff := cmp.Diff(page.want, got, times, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	got, err := deadletter.Show(t.Context(), db, first)
	testdb.Must(t, err)
	if string(got.Payload) != "\x00\xff" || string(got.Metadata) != `{"a": "b"}` || got.ReceivedAt.IsZero() {
		t.Errorf("the message is %+v", got)
	}
}

func TestRetryAndDiscard_refuseWhatIsNoDeadLetter(t *testing.T) {
	testrun.Long(t, "it needs a database")
	t.Parallel()
	for name, test := range map[string]struct {
		decide func(context.Context, postgres.Querier, int64, string) error
		after  string
	}{
		"retry": {deadletter.Retry, `status = 'pending' and first and attempts + deaths + waits = 0 and waiting_since is null
			and due_at <= clock_timestamp() and finished_at is null`}, // as if it had never been tried, in its place of the key
		"discard": {deadletter.Discard, `status = 'discarded' and not first and finished_at is not null`},
	} {
		decide := test.decide
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Reused(t)
			putDeadLetters(t, db)
			testdb.Exec(t, db.Pool(), `update inbox set status = 'done', first = false, done_fence = fence where message_id = 'm3'`)
			for _, id := range []string{"m2", "m3"} {
				if err := decide(t.Context(), db, number(t, db, id), "ada"); !errors.Is(err, deadletter.ErrNotDeadLetter) {
					t.Errorf("%s: %v, want ErrNotDeadLetter", id, err)
				}
			}
			if err := decide(t.Context(), db, -1, "ada"); !errors.Is(err, deadletter.ErrNoMessage) {
				t.Errorf("a message that is none: %v, want ErrNoMessage", err)
			}
			if err := decide(t.Context(), db, number(t, db, "m1"), ""); groupcommit.Constraint(err) != "inbox_decision_has_actor" {
				t.Errorf("a decision without an actor: %v", err)
			}
			if err := decide(t.Context(), db, number(t, db, "m1"), "ada"); err != nil {
				t.Error(err)
			}
			if err := decide(t.Context(), db, number(t, db, "m1"), "bob"); !errors.Is(err, deadletter.ErrNotDeadLetter) {
				t.Errorf("the second decision: %v, want ErrNotDeadLetter", err)
			}
			testrun.Row(t, db, `select count(*) = 1 and max(decided_by || ' ' || message_id) = 'ada m1' and bool_and(`+test.after+`) from inbox where decided_by is not null`)
		})
	}
}
