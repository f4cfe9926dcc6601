package inbox_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

// of makes messages of "id=payload" or "id=payload@key"; the key is else k.
func of(texts ...string) []outbox.Message {
	messages := make([]outbox.Message, len(texts))
	for i, text := range texts {
		name, key, found := strings.Cut(text, "@")
		if !found {
			key = "k"
		}
		id, payload, _ := strings.Cut(name, "=")
		messages[i] = letter(id, payload)
		messages[i].OrderingKey = key
	}
	return messages
}

// receivePage has a processor that does not run receive a page.
func receivePage(t fataler, db *postgres.DB, receiver string, page []inbox.Message) inbox.Reception {
	t.Helper()
	got, err := storing(db, receiver).Receive(t.Context(), page...)
	must(t, err)
	return got
}

func wantAside(t *testing.T, db *postgres.DB, want ...string) {
	t.Helper()
	got := all(t, db, pgx.RowTo[string], `select receiver || ' ' || message_id || '=' || convert_from(payload, 'UTF8') from inbox_quarantine order by 1`)
	testrun.Same(t, "quarantine", append([]string{}, want...), got)
}

func TestReceive_storesAPageAsItsMessagesOneByOne(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := testdb.Reused(t)
	its := testdb.As(t, db, postgres.RoleWorker)
	for name, test := range map[string]struct {
		known, page []string
		want        map[string]int
		aside       []string
		told        inbox.Reception
	}{
		"one comes again within it, and had come before": {
			known: []string{"a=1"}, page: []string{"a=1", "b=1", "a=1"}, want: map[string]int{"r a": 2, "r b": 0},
			told: inbox.Reception{New: 1, Duplicates: 2},
		},
		"one comes with several payloads within it, and the first is kept": {
			page: []string{"a=1", "a=2", "a=1", "a=3", "a=2", "b=1"}, want: map[string]int{"r a": 1, "r b": 0},
			aside: []string{"r a=2", "r a=3"}, told: inbox.Reception{New: 2, Duplicates: 1, Quarantined: 3},
		},
		"one comes with several payloads, of which the second is known": {
			known: []string{"a=2"}, page: []string{"a=1", "a=2", "a=3", "a=2"}, want: map[string]int{"r a": 2},
			aside: []string{"r a=1", "r a=3"}, told: inbox.Reception{Duplicates: 2, Quarantined: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			empty(t, db)
			for _, m := range of(test.known...) {
				accept(t, db, inbox.Message{ID: m.ID, OrderingKey: m.OrderingKey, Payload: m.Payload})
			}
			if got := receivePage(t, its, "r", delivered(test.page...)); got != test.told {
				t.Errorf("it is received as %+v, want %+v", got, test.told)
			}
			wantReceived(t, db, test.want)
			wantAside(t, db, test.aside...)
			await.Row(t, db, `select bool_and(convert_from(payload, 'UTF8') = case when message_id = 'a' and exists (
				select from inbox_quarantine where convert_from(payload, 'UTF8') = '1') then '2' else '1' end) from inbox`)
		})
	}

	t.Run("each keeps its own type, metadata and time", func(t *testing.T) {
		db := fresh(t)
		page := delivered("m0=x", "m1=x", "m2=x")
		for i, m := range page {
			page[i].Type, page[i].OrderingKey = fmt.Sprint("type ", i), fmt.Sprint("key ", i)
			m.Metadata[outbox.MetadataType], m.Metadata[outbox.MetadataOrderingKey] = page[i].Type, page[i].OrderingKey
			m.Metadata[outbox.MetadataCorrelationID] = fmt.Sprint("correlation ", i)
		}
		receivePage(t, db, "r", page)
		await.Row(t, db, `
select count(*) = 3
   and bool_and(type = 'type ' || right(message_id, 1)
            and ordering_key = 'key ' || right(message_id, 1)
            and metadata ->> 'type' = type
            and metadata ->> 'ordering_key' = ordering_key
            and metadata ->> 'correlation_id' = 'correlation ' || right(message_id, 1)
            and payload_hash = sha256(payload))
   and count(distinct received_at) = 3
  from inbox`)
	})
}

// The oldest of a key may itself be in the page that wakes it.
func TestReceive_wakesAWaitingMessageThatThePageRepeats(t *testing.T) {
	testdb.Long(t, "it repeats pages")
	t.Parallel()
	db := testdb.Reused(t)
	for name, test := range map[string]struct {
		page       []string
		duplicates int
	}{
		"before the new message":             {[]string{"waiting=", "new=1"}, 1},
		"with that and with another payload": {[]string{"waiting=other", "waiting=", "new=1"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			empty(t, db)
			accept(t, db, inbox.Message{ID: "waiting", OrderingKey: "k"})
			write(t, db, `update inbox set waits = 3, waiting_since = clock_timestamp(), due_at = clock_timestamp() + interval '1 hour'`)
			receivePage(t, db, "r", delivered(test.page...))
			if !isDue(t, db, "waiting") {
				t.Errorf("it sleeps on: %+v", stored(t, db, "waiting"))
			}
			wantReceived(t, db, map[string]int{"r waiting": test.duplicates, "r new": 0})
		})
	}

	t.Run("but does not wake it by repeating it", func(t *testing.T) {
		empty(t, db)
		accept(t, db, inbox.Message{ID: "waiting", OrderingKey: "k"})
		write(t, db, `update inbox set waits = 3, waiting_since = clock_timestamp(), due_at = clock_timestamp() + interval '1 hour'`)
		receivePage(t, db, "r", delivered("waiting=", "waiting=", "waiting=other", "new=1@l"))
		if isDue(t, db, "waiting") {
			t.Error("it is due")
		}
	})
}

// A page locks what is there in the order of its numbers, whatever the order of its
// messages and of their keys. So does a commit that ends several messages.
func TestReceive_doesNotDeadlockWithACommitOfSeveralEnds(t *testing.T) {
	t.Parallel()
	for name, texts := range map[string][]string{
		"both are repeated":                               {"second=@a", "first=@z"},
		"both keys have a new message":                    {"new2=@a", "new1=@z"},
		"the first is repeated, the other has a new one":  {"new2=@a", "first=@z"},
		"the second is repeated, the other has a new one": {"second=@a", "new1=@z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := testdb.URL(t)
			db := testdb.OpenAt(t, address, postgres.Options{})
			accept(t, db, inbox.Message{ID: "first", OrderingKey: "z"})
			accept(t, db, inbox.Message{ID: "second", OrderingKey: "a"})
			write(t, db, `update inbox set status = 'running', attempts = 1, fence = 1`)
			post(t, db, of(texts...)...)
			rival := begin(t, testdb.OpenAt(t, address, postgres.Options{})) // younger, or it would hold the page back
			end := `update inbox set status = 'done', done_fence = fence where message_id = `
			run(t, rival, `set local lock_timeout = '20s'`)
			run(t, rival, end+`'first'`)
			lines, stop := receive(t, db, "r")
			await.Blocked(t, db, 1)
			run(t, rival, end+`'second'`)
			run(t, rival, `commit`)
			awaitReceived(t, db)
			stop()
			lines.want(t, "")
			await.Row(t, db, `select bool_and(status = case when message_id ~ 'new' then 'pending' else 'done' end) from inbox`)
		})
	}
}

// A page whose connection is cut is received once. That holds at its commit too:
// the walk of e2e dies there, on both sides.
func TestReceive_storesAPageOnceAfterACutConnection(t *testing.T) {
	t.Parallel()
	for name, side := range map[string]failpoint.Side{"before": failpoint.Before, "after": failpoint.After} {
		for _, written := range []bool{false, true} {
			at := map[bool]string{false: "it is written", true: "the offset moves"}[written]
			t.Run(name+" "+at, func(t *testing.T) {
				t.Parallel()
				url := testdb.URL(t)
				db := testdb.OpenAt(t, url, postgres.Options{})
				post(t, db, of("a=1", "b=1", "c=1", "b=1")...)
				proxy := failpoint.StartCutter(t, url)
				var once sync.Once
				arm := func(now bool) {
					if now {
						once.Do(func() { proxy.Arm(side, map[bool]int{false: 4, true: 1}[written]) })
					}
				}
				its := testdb.OpenAt(t, proxy.URL(), postgres.Options{})
				p := storing(its, "r")
				p.OnReceive = func(inbox.Reception) { arm(written) }
				receiveWith(t, its, p, func(*message.Message) (inbox.Message, error) {
					arm(!written)
					return inbox.Message{}, nil
				}, nil)
				await.True(t, "a cut", func() bool { return proxy.Cuts() == 1 })
				awaitReceived(t, db)
				want := map[string]int{"r a": 0, "r b": 1, "r c": 0}
				if written || side == failpoint.After { // but not acknowledged: each message is redelivered
					want = map[string]int{"r a": 1, "r b": 3, "r c": 1}
				}
				wantReceived(t, db, want)
			})
		}
	}
}
