package books_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/ledger/books"
)

// TestFollow_storesEachEventOnce: several follow under one name, some of their work fails, and rivals append to
// the streams: they load before the first write of their commit, so the order is that of the versions.
func TestFollow_storesEachEventOnce(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	exec(t, db, `create table followed (n bigint generated always as identity, stream_id text, version int); insert into followers (name) values ('test')`)
	failed := errors.New("the work fails")
	store := func(ctx context.Context, tx pgx.Tx, events []books.Followed) error {
		for _, e := range events {
			if _, err := tx.Exec(ctx, `insert into followed (stream_id, version) values ($1, $2)`, e.StreamID, e.Version); err != nil {
				return err
			}
		}
		return nil
	}
	some := func() error {
		n, err := books.Follow(t.Context(), db, "test", 5, func(ctx context.Context, tx pgx.Tx, events []books.Followed) error {
			if err := store(ctx, tx, events); err != nil || events[len(events)-1].Position%7 > 0 {
				return err
			}
			return failed
		})
		if err != nil && !errors.Is(err, failed) || n > 5 {
			return fmt.Errorf("%d events: %w", n, err)
		}
		return nil
	}
	const streams, each = 4, 40
	for i := range streams {
		id := fmt.Sprint("ch_", i)
		appended(t, db, ledger.New(id), cause("a"), paid("acme", "pi_"+id)[:2]...)
	}
	besides(t, func(w int) error {
		for i := 0; i < each; {
			s, err := ledger.Load(t.Context(), db, fmt.Sprint("ch_", i%streams))
			if err == nil {
				_, err = commit(t.Context(), db, s, cause(fmt.Sprint(w, i)), attempt(500+i))
			}
			if err == nil {
				i++
			} else if !ledger.IsConflict(err) {
				return err
			}
		}
		return nil
	}, some, some, some)
	testrun.Progress(t, "every event is followed", func() (string, bool) {
		_, err := books.Follow(t.Context(), db, "test", 100, store)
		testdb.Must(t, err)
		n := testdb.One[int](t, db, `select count(*) from followed`)
		return strconv.Itoa(n), n == streams*2+3*each
	})
	testrun.Same(t, "events twice, or before the one before them", []string{}, testdb.All[string](t, db, `
select stream_id from (select stream_id, version, row_number() over (partition by stream_id order by n) as place from followed) f where version <> place`))
	testrun.Same(t, "the highest position", testdb.One[int64](t, db, `select max(position) from ledger_events`),
		testdb.One[int64](t, db, `select highest from followers where name = 'test'`))
}

// TestFollowers_skipNothingThatCommitsLate: a transaction that is older than one which is committed delays the
// feed and the sums, and neither the list nor the balances.
func TestFollowers_skipNothingThatCommitsLate(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	next := ""
	for range 50 {
		if n, err := books.AddUp(t.Context(), db); n != 0 || err != nil {
			t.Fatalf("%d events of an empty ledger were added: %v", n, err)
		}
	}
	late, err := db.Pool().Begin(t.Context())
	testdb.Must(t, err)
	b := &pgx.Batch{}
	_, err = ledger.Append(b, ledger.New("ch_1"), cause("a"), paid("acme", "pi_1")...)
	testdb.Must(t, err)
	testdb.Must(t, late.SendBatch(t.Context(), b).Close())
	appended(t, db, ledger.New("ch_2"), cause("a"), paid("acme", "pi_2")...)
	paidOut := func() int64 { return balancesOf(t, db, "acme").Data[2].Credits }
	if n, err := books.AddUp(t.Context(), db); n != 0 || err != nil {
		t.Errorf("%d events were added before an older transaction had ended: %v", n, err)
	}
	testrun.Same(t, "the feed meanwhile", []string(nil), follow(t, db, &next, 10, nil))
	ids, _ := listed(t, db, books.ListQuery{})
	testrun.Same(t, "listed meanwhile", []string{"ch_2"}, ids)
	testrun.Same(t, "credits meanwhile", int64(970), paidOut())
	testdb.Must(t, late.Commit(t.Context()))
	testrun.Same(t, "the feed", []string{"ch_1 charge.succeeded", "ch_2 charge.succeeded"}, followAll(t, db, &next, 10, 2))
	testrun.Same(t, "events that were added", 8, addUp(t, db))
	testrun.Same(t, "credits", int64(1940), paidOut())
}

// follow reads acme's feed page by page from a cursor to its end, and adds what it reads to ids.
func follow(t *testing.T, q postgres.Querier, next *string, limit int, ids []string) []string {
	t.Helper()
	for more := true; more; {
		page, err := books.ReadFeed(t.Context(), q, "acme", *next, limit)
		testdb.Must(t, err)
		for _, e := range page.Unreadable {
			ids = append(ids, fmt.Sprintf("%s %d of %s is unreadable: %t, %s", e.Type, e.Version, e.ChargeID, e.Err != nil, e.ID[34:]))
		}
		for _, raw := range page.Data {
			var entry struct {
				ID   string
				Type string
				Data struct{ ID string }
			}
			testdb.Must(t, json.Unmarshal(raw, &entry))
			ids = append(ids, entry.Data.ID+" "+entry.Type)
		}
		*next, more = page.Next, page.HasMore
		if passed := len(page.Data) + len(page.Unreadable); passed > limit || more && passed == 0 {
			t.Fatalf("a page of %d entries passes over %d, more: %t", limit, passed, more)
		}
	}
	return ids
}

// followAll follows until so many entries came. It waits for the open transactions of other tests.
func followAll(t *testing.T, q postgres.Querier, next *string, limit, entries int) (ids []string) {
	t.Helper()
	testrun.Progress(t, fmt.Sprintf("the feed has %d entries", entries), func() (string, bool) {
		ids = follow(t, q, next, limit, ids)
		return strings.Join(ids, ", "), len(ids) >= entries
	})
	return ids
}

// TestReadFeed: a charge that cannot be read holds up no other, its events are named as far as their rows tell, and the
// list leaves it out.
func TestReadFeed(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	api := testdb.As(t, db, postgres.RoleAPI).Tenant("acme")
	refund := []domain.Event{
		domain.RefundRequested{RefundID: "re_1", Amount: 600},
		domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600},
	}
	for i := range 4 {
		id := fmt.Sprint("ch_", i)
		appended(t, db, ledger.New(id), cause("a"), paid("acme", "pi_"+id)...)
	}
	appended(t, db, ledger.New("ch_other"), cause("a"), paid("globex", "pi_other")...)
	s, err := ledger.Load(t.Context(), db, "ch_1")
	testdb.Must(t, err)
	exec(t, db, testdb.UnreadableOutcomes)
	appended(t, db, s, cause("b"), refund...)
	want := []string{
		"ch_0 charge.succeeded", "ch_1 charge.succeeded", "ch_2 charge.succeeded", "ch_3 charge.succeeded", "re_1 refund.succeeded",
		"charge.failed 3 of ch_newer is unreadable: true, 01", "charge.failed 19 of ch_long is unreadable: true, 02",
	}

	for _, limit := range []int{1, 2, 4, 5, 100} {
		next := ""
		got := followAll(t, api, &next, limit, len(want))
		slices.SortStableFunc(got, func(a, b string) int { return strings.Count(a, "unreadable") - strings.Count(b, "unreadable") })
		testrun.Same(t, fmt.Sprintf("the outcomes in pages of %d", limit), want, got)
	}
	listedIDs, _ := listed(t, db, books.ListQuery{})
	testrun.Same(t, "listed", []string{"ch_3", "ch_2", "ch_1", "ch_0"}, listedIDs)

	next := ""
	follow(t, api, &next, 100, nil)
	foreign := testdb.One[string](t, db, `select event_id::text from ledger_events where stream_id = 'ch_other' and version = 4`)
	for _, after := range []string{
		"_", next[1:], next + "0", strings.ToUpper(next), "{" + next + "}", "x", foreign, "00000000-0000-0000-0000-000000000000", "\x00",
	} {
		if page, err := books.ReadFeed(t.Context(), api, "acme", after, 10); !errors.Is(err, books.ErrUnknownCursor) {
			t.Errorf("after %q: %v, %v", after, page, err)
		}
	}
}
