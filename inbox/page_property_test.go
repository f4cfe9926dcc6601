package inbox_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

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
			messages := of(texts...)
			got, want := receivePage(r, worker, "paged", delivered(texts...)), inbox.Reception{}
			for _, m := range messages {
				its := inbox.Message{
					ID: m.ID, Type: m.Type, OrderingKey: m.OrderingKey, Payload: m.Payload,
					Metadata: map[string]string{"type": m.Type, "ordering_key": m.OrderingKey},
				}
				one := acceptFor(r, db, "single", its)
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
