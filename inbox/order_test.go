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

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// A message is a wake-up: it says that there is something to do, and its handler
// finds out what. So the book of an account is the same in whatever order its
// messages come, and however often each.
func TestAStreamInAnyOrderAndAnyNumberOfTimesMakesTheSameBook(t *testing.T) {
	testdb.Long(t, "it does the same in many ways")
	t.Parallel()
	const long = 50
	five := []int{1, 2, 3, 4, 5}
	want := map[string]string{}
	messages, repeats := 0, 0
	deliveries := &pgx.Batch{}
	deliver := func(account string, order []int) {
		for _, n := range order {
			id := fmt.Sprint(account, "-", n)
			err := outbox.Append(deliveries, outbox.Message{Topic: topic, ID: id, Type: "letter", OrderingKey: account, Payload: []byte(id)})
			must(t, err)
		}
		last := slices.Max(order)
		messages += last
		repeats += len(order) - last
		want[account] = strings.Trim(fmt.Sprint(numbers(last)), "[]")
	}
	for i, order := range permutations(five) {
		deliver(fmt.Sprint("five", i), order)
	}
	for seed := range uint64(4) {
		draw := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // the same draw each time
		order := numbers(long)
		for range 2 * long {
			order = append(order, 1+draw.IntN(long))
		}
		draw.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		deliver(fmt.Sprint("long", seed), order)
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
	if diff := cmp.Diff(want, books(t, db)); diff != "" {
		t.Errorf("books (-want +got):\n%s", diff)
	}
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
	b.Queue(`insert into book (account, entry) values ($1, $2)`, d.OrderingKey, entries+1)
	if err := d.Commit(ctx, db, b); err != nil {
		return err
	}
	if mishap%5 == 0 {
		return fmt.Errorf("make an entry: %w", postgres.ErrUnknown)
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

func numbers(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i + 1
	}
	return all
}

// permutations are all orders of some numbers.
func permutations(of []int) [][]int {
	if len(of) == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for i, first := range of {
		for _, rest := range permutations(slices.Concat(of[:i], of[i+1:])) {
			all = append(all, append([]int{first}, rest...))
		}
	}
	return all
}
