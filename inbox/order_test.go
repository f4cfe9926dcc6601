package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/outbox"
)

// A message is a wake-up: it says that there is something to do, and its handler
// finds out what. So the book of an account is the same in whatever order its
// messages come, and however often each.
func TestConsume_anyOrderAndRepetitionGiveTheSameResult(t *testing.T) {
	testdb.Long(t, "it does the same in many ways")
	t.Parallel()
	want := map[string]string{}
	messages, repeats := 0, 0
	deliveries := &pgx.Batch{}
	for seed := range uint64(40) {
		draw := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // the same draw each time
		account, last := fmt.Sprint("account", seed), 3+draw.IntN(20)
		order := draw.Perm(last)
		want[account] = strings.Trim(fmt.Sprint(slices.Sorted(slices.Values(order))), "[]")
		for range draw.IntN(2 * last) {
			order = slices.Insert(order, draw.IntN(len(order)), draw.IntN(last))
		}
		for _, n := range order {
			id := fmt.Sprint(account, "-", n)
			must(t, outbox.Append(deliveries, outbox.Message{Topic: topic, ID: id, Type: "letter", OrderingKey: account, Payload: []byte(id)}))
		}
		messages, repeats = messages+last, repeats+len(order)-last
	}

	db := testdb.Open(t)
	// Nothing here refuses an entry that is made twice.
	write(t, db, `create table book (n bigint generated always as identity, account text not null, entry int not null)`)
	write(t, db, `create index on book (account)`)
	must(t, db.Commit(t.Context(), deliveries))
	receive(t, db, "r")
	for range 2 { // processes
		p := processor(db, func(ctx context.Context, d *inbox.Delivery) error { return makeEntry(ctx, db, d) })
		p.Policy.BackoffBase, p.Policy.BackoffCap = time.Millisecond, 5*time.Millisecond
		start(t, p)
	}
	await.Row(t, db, fmt.Sprintf(`select count(*) = %d and bool_and(status = 'done') and sum(duplicates) = %d from inbox`, messages, repeats))
	testrun.Same(t, "books", want, books(t, db))
}

// makeEntry makes the account's next entry. Now and then it fails before, or
// loses the answer of its commit.
func makeEntry(ctx context.Context, db *postgres.DB, d *inbox.Delivery) error {
	var entries int
	if err := db.QueryRow(ctx, `select count(*) from book where account = $1`, d.OrderingKey).Scan(&entries); err != nil {
		return err
	}
	mishap := len(d.ID) + entries
	if d.Attempt == 1 && mishap%3 == 0 {
		return errors.New("the pen is empty")
	}
	b := &pgx.Batch{}
	b.Queue(`insert into book (account, entry) values ($1, $2)`, d.OrderingKey, entries)
	if err := d.Commit(ctx, db, b); err != nil {
		return err
	}
	if mishap%5 == 0 {
		return fmt.Errorf("make an entry: %w", groupcommit.ErrUnknown)
	}
	return nil
}

// books are the entries of each account, in the order in which they were made.
func books(t *testing.T, db *postgres.DB) map[string]string {
	t.Helper()
	return one[map[string]string](t, db, `
select jsonb_object_agg(account, entries)
  from (select account, string_agg(entry::text, ' ' order by n) as entries from book group by account) its`)
}
