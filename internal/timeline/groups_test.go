package timeline_test

import (
	"slices"
	"testing"

	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/internal/timeline"
)

func TestRead_showsAMessageAsWaitingUntilTheGroupOfTheInboxHasPassedIt(t *testing.T) {
	pgtest.Long(t, "it takes a large part of the time")
	t.Parallel()
	w := newWorld(t)
	id := w.accept("acme", "1")
	stands := func() string {
		t.Helper()
		tl, err := timeline.Read(t.Context(), w.db, id, "")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(tl.Entries, func(e timeline.Entry) bool { return e.Kind == timeline.Outbox })
		if i < 0 {
			t.Fatalf("no message among %+v", tl.Entries)
		}
		return tl.Entries[i].What
	}
	w.exec(`
insert into outbox_offsets (topic, consumer_group, transaction_id, "offset")
select topic, 'analytics', transaction_id, "offset"
  from outbox`)
	if what := stands(); what != "waiting" {
		t.Errorf("another group has read the message, and it is %s", what)
	}
	w.receive()
	if what := stands(); what != "passed" {
		t.Errorf("the inbox has received the message, and it is %s", what)
	}
}
