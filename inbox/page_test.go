package inbox_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

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
		messages[i].Type, messages[i].OrderingKey = "type of "+id, key
	}
	return messages
}

// receivePage has a processor that does not run receive a page.
func receivePage(t fataler, db *postgres.DB, receiver string, page []inbox.Message) inbox.Reception {
	t.Helper()
	got, err := storing(db, receiver).Receive(t.Context(), page...)
	testdb.Must(t, err)
	return got
}

func wantAside(t *testing.T, db *postgres.DB, want ...string) {
	t.Helper()
	got := all(t, db, pgx.RowTo[string], `select receiver || ' ' || message_id || '=' || convert_from(payload, 'UTF8') from inbox_quarantine order by 1`)
	testrun.Same(t, "quarantine", append([]string{}, want...), got)
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
			end := `update inbox set status = 'done', done_fence = fence where message_id = `
			its := testdb.OpenAt(t, address, postgres.Options{}) // of a transaction that is younger, or it would hold the page back
			rival := testdb.Begin(t, its.Pool(), `set local lock_timeout = '20s'`)
			testdb.Exec(t, rival, end+`'first'`)
			lines, stop := receive(t, db)
			await.Blocked(t, db, 1)
			testdb.Exec(t, rival, end+`'second'`)
			testdb.Exec(t, rival, `commit`)
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

// is what one receiver has of a message, beside times.
type kept struct {
	Message, Key, Type, Payload, Metadata, Status string
	Duplicates                                    int
	Due                                           bool
}

func keptBy(t fataler, db *postgres.DB, receiver string) []kept {
	t.Helper()
	return all(t, db, pgx.RowToStructByName[kept], `
select message_id as message,
       ordering_key as key,
       type,
       convert_from(payload, 'UTF8') as payload,
       metadata::text as metadata,
       status,
       duplicates,
       due_at <= clock_timestamp() as due
  from inbox
 where receiver = $1
 order by id`, receiver)
}

func asideBy(t fataler, db *postgres.DB, receiver string) []string {
	t.Helper()
	return all(t, db, pgx.RowTo[string], `
select message_id || '=' || convert_from(payload, 'UTF8')
  from inbox_quarantine
 where receiver = $1
 order by 1`, receiver)
}

// TestReceive_givesTheSameResultForPagesOfAnySize: any stream of deliveries leaves, in pages of any
// size, what it leaves one after another: also where the messages of some keys wait
// for an external service meanwhile, or are ended.
func TestReceive_givesTheSameResultForPagesOfAnySize(t *testing.T) {
	testdb.Long(t, "it repeats pages in many sizes")
	t.Parallel()
	db := testdb.Reused(t)
	worker := testdb.As(t, db, postgres.RoleWorker)
	draws := 0
	rapid.Check(t, func(r *rapid.T) {
		if draws++; draws > 30 {
			return // each takes some commits
		}
		for range rapid.IntRange(1, 4).Draw(r, "pages") {
			texts := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) string {
				return fmt.Sprintf("%d-%s=%s@%d-%s", draws, rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(r, "id"),
					rapid.SampledFrom([]string{"1", "1", "1", "2", "3"}).Draw(r, "payload"),
					draws, rapid.SampledFrom([]string{"k", "l"}).Draw(r, "key"))
			}), 1, 12).Draw(r, "messages")
			messages := delivered(texts...)
			got, want := receivePage(r, worker, "paged", messages), inbox.Reception{}
			for _, m := range messages {
				one := acceptFor(r, db, "single", m)
				want.New, want.Duplicates, want.Quarantined = want.New+one.New, want.Duplicates+one.Duplicates, want.Quarantined+one.Quarantined
			}
			if got != want {
				r.Fatalf("received as %+v by pages, %+v one after another", got, want)
			}
			if diff := cmp.Diff(keptBy(r, db, "single"), keptBy(r, db, "paged")); diff != "" {
				r.Fatalf("the inbox (-one after another +by pages):\n%s", diff)
			}
			if diff := cmp.Diff(asideBy(r, db, "single"), asideBy(r, db, "paged")); diff != "" {
				r.Fatalf("quarantine (-one after another +by pages):\n%s", diff)
			}
			change := rapid.SampledFrom([]string{
				`waits = 1, due_at = clock_timestamp() + interval '1 hour'`,
				`attempts = 1, due_at = clock_timestamp() + interval '1 hour'`,
				`status = 'done', done_fence = fence`,
				`status = 'dead'`,
				`due_at = due_at`,
			}).Draw(r, "meanwhile")
			b := &pgx.Batch{}
			b.Queue(`update inbox set `+change+` where status = 'pending' and message_id = $1`,
				fmt.Sprintf("%d-%s", draws, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "of")))
			if err := db.Commit(r.Context(), b); err != nil {
				r.Fatal(err)
			}
		}
	})
}
