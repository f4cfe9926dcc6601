package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

func TestOnce_besideRivals(t *testing.T) {
	t.Parallel()

	t.Run("of many calls at once one calls the function, and all get its result", func(t *testing.T) {
		t.Parallel()
		db, w := testdb.OpenAt(t, testdb.URL(t), postgres.Options{MaxConns: 4}), &work{}
		var group errgroup.Group
		for range 32 {
			group.Go(func() error {
				got := once(t.Context(), db.Pool(), order{ID: "o-1"}, w.do)
				if got.Value.Number != 1 {
					t.Errorf("%+v", got)
				}
				return got.Err
			})
		}
		if err := group.Wait(); err != nil || w.calls.Load() != 1 {
			t.Errorf("%d calls, %v", w.calls.Load(), err)
		}
		wantEffects(t, db, 1)
	})

	t.Run("the wait bounds the claim alone, and may be longer than a statement", func(t *testing.T) {
		t.Parallel()
		db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{LockTimeout: time.Minute, StatementTimeout: 2 * time.Second})
		o := idempotency.Options{Wait: 2500 * time.Millisecond}
		show := func(ctx context.Context, tx pgx.Tx) (timeouts string, err error) {
			err = tx.QueryRow(ctx, `select current_setting('lock_timeout') || ' ' || current_setting('statement_timeout')`).Scan(&timeouts)
			return timeouts, err
		}
		if got, _, err := idempotency.Once(t.Context(), db.Pool(), keyOf("other"), o, show); err != nil || got != "1min 2s" {
			t.Errorf("the time-outs are %s: %v", got, err)
		}
		rivalInFlight(t, db)
		if _, _, err := idempotency.Once(t.Context(), db.Pool(), theKey(), o, show); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("the error is %v, want ErrInFlight", err)
		}
	})
}

// What is stored must be found by every later version.
func TestStoredForm_neverChanges(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for i, err := range []error{nil, &idempotency.FinalError{Code: "declined", Message: "no"}} {
		once(t.Context(), db.Pool(), order{ID: fmt.Sprint("o-", i), Amount: 7}, func(context.Context, pgx.Tx) (receipt, error) {
			return receipt{Number: 1}, err
		})
	}
	post(t, serve(db.Pool(), options{Headers: []string{"Link"}}, handle), "/orders?b=2&a=%20", `{"b":1.0,"a":2}`, withKey, asJSON, "Tenant: acme")
	rows, err := db.Query(t.Context(), `
select concat_ws(' ', scope, operation, key, encode(fingerprint, 'hex'), convert_from(request, 'UTF8'), status_code, content_type, encode(body, 'escape'), headers)
  from idempotency_keys
 order by key`)
	testdb.Must(t, err)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	want := []string{
		`acme HTTP k1 6a5078ca90f07f3ffc4ae60d945bc2bbba7cf4485888a01d981469b3eb98753a 201  {"b":1.0,"a":2}` + "\n" + `\000\377 {"Link": ["</a>", "</b>"]}`,
		`acme order.v1 o-0:order:v1 e561f1757f4afe1917fad4e083196c2a1f2bd8c64dcc8d18f46bbf07c0ad9aee {"amount":7,"id":"o-0"} 200 application/json {"number":1,"paid":0}`,
		`acme order.v1 o-1:order:v1 c6a0fe49445b371a70f0e9761260e308891042c44473f593e22dd80d22f20095 {"amount":7,"id":"o-1"} 422 application/json {"code":"declined","message":"no"}`,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, rows (-want +got):\n%s", err, diff)
	}
}
