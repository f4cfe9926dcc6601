package books_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/ledger/books"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// The charges of these tests, and how they are stored.
var (
	requested, paid, attempt, cause = testdb.Requested, testdb.Paid, testdb.Attempt, testdb.Cause
	commit, appended, exec          = testdb.Append, testdb.Appended, testdb.Exec
)

// addUp adds up the balances until no event is left, and returns the number of events.
func addUp(t *testing.T, db *postgres.DB) (events int) {
	t.Helper()
	testdb.CatchUp(t, db, "balances", func() error {
		n, err := books.AddUp(t.Context(), db)
		events += n
		return err
	})
	return events
}

// listed returns the ids of the charges of a page of acme's, unless q says otherwise, and the next page.
func listed(t *testing.T, db *postgres.DB, q books.ListQuery) (ids []string, next string) {
	t.Helper()
	if q.MerchantID == "" {
		q.MerchantID = "acme"
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	page, err := books.ListCharges(t.Context(), db, q)
	testdb.Must(t, err)
	for _, raw := range page.Data {
		var view domain.View
		testdb.Must(t, json.Unmarshal(raw, &view))
		ids = append(ids, view.ID)
	}
	if page.HasMore != (page.Next != "") {
		t.Errorf("a page has more: %t, next is %q", page.HasMore, page.Next)
	}
	return ids, page.Next
}

// besides does some things again and again, each beside the others, while three writers write.
func besides(t *testing.T, write func(w int) error, do ...func() error) {
	t.Helper()
	var all, writers errgroup.Group
	var written atomic.Bool
	for _, one := range do {
		all.Go(func() (err error) {
			for err == nil && !written.Load() {
				err = one()
			}
			return err
		})
	}
	for w := range 3 {
		writers.Go(func() error { return write(w) })
	}
	err := writers.Wait()
	written.Store(true)
	testdb.Must(t, errors.Join(err, all.Wait()))
}

// TestReads_failWithTheDatabase: no read takes an error for an empty answer.
func TestReads_failWithTheDatabase(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	err := func(_ any, err error) error { return err }
	for name, read := range map[string]func(context.Context) error{
		"Load":                func(ctx context.Context) error { return err(ledger.Load(ctx, db, "ch_1")) },
		"Each":                func(ctx context.Context) error { return ledger.Each(ctx, db, []string{"ch_1"}, nil) },
		"FindByPaymentIntent": func(ctx context.Context) error { return err(ledger.FindByPaymentIntent(ctx, db, "stripe", "pi_1")) },
		"LoadHolder":          func(ctx context.Context) error { return err(ledger.LoadHolder(ctx, db, "acme", "1")) },
		"Find":                func(ctx context.Context) error { return err(ledger.Find(ctx, db, "ch_1")) },
		"ListCharges":         func(ctx context.Context) error { return err(books.ListCharges(ctx, db, books.ListQuery{Limit: 1})) },
		"ReadFeed":            func(ctx context.Context) error { return err(books.ReadFeed(ctx, db, "acme", "", 1)) },
		"ReadBalances":        func(ctx context.Context) error { return err(books.ReadBalances(ctx, db, "acme")) },
		"Recount":             func(ctx context.Context) error { return err(books.Recount(ctx, db)) },
		"Follow":              func(ctx context.Context) error { return err(books.Follow(ctx, db, "balances", 1, nil)) },
	} {
		ended, end := context.WithCancel(t.Context())
		end()
		if err := read(ended); !errors.Is(err, context.Canceled) || errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
