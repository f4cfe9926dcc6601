package intake_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/internal/robustness/failpoint"
)

func TestRivals(t *testing.T) {
	t.Parallel()

	t.Run("of sixty-four requests under one key one makes the charge, and all get its bytes", func(t *testing.T) {
		t.Parallel()
		const clients = 64 // far more than connections
		db := open(t, pgtest.URL(t), postgres.Options{MaxConns: 6})
		in := keeping(t, db)
		var mu sync.Mutex
		var answers []idempotency.Outcome
		var work errgroup.Group
		for range clients {
			work.Go(func() error {
				accepted, err := in.AcceptCharge(t.Context(), acme(), request("k1", "f"), mug())
				mu.Lock()
				defer mu.Unlock()
				answers = append(answers, accepted)
				return err
			})
		}
		if err := work.Wait(); err != nil {
			t.Fatal(err)
		}
		first := 0
		for _, a := range answers {
			if !a.Replayed {
				first++
			}
			if diff := cmp.Diff(answers[0].Answer, a.Answer); diff != "" || !a.ExpiresAt.Equal(answers[0].ExpiresAt) {
				t.Errorf("two answers (-one +other):\n%s", diff)
			}
		}
		if len(answers) != clients || first != 1 {
			t.Errorf("%d answers, %d of them the first", len(answers), first)
		}
		wantCharges(t, db, 1)
	})

	t.Run("requests under different keys do not disturb each other", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		in := keeping(t, db)
		var work errgroup.Group
		for i := range 64 {
			work.Go(func() error {
				_, err := in.AcceptCharge(t.Context(), acme(), request(fmt.Sprint("k", i%16), "f"), mug())
				return err
			})
		}
		if err := work.Wait(); err != nil {
			t.Fatal(err)
		}
		wantCharges(t, db, 16)
	})

	t.Run("while a request is in flight another one under its key says so", func(t *testing.T) {
		t.Parallel()
		direct, address := migrated(t)
		in := keeping(t, open(t, address, postgres.Options{LockTimeout: 50 * time.Millisecond}))
		tx, err := direct.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		_, err = tx.Exec(t.Context(), `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
values ('acme', 'POST /v1/charges', 'k1', 'f', 202, '', 'from the other', clock_timestamp() + interval '1 hour')`)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.AcceptCharge(t.Context(), acme(), request("k1", "f"), mug()); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("the error is %v, want ErrInFlight", err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := accept(t, in, request("k1", "f")); string(got.Body) != "from the other" || !got.Replayed {
			t.Errorf("once it has committed, the answer is %+v", got)
		}
	})

	t.Run("a request that waited for one that failed makes the charge", func(t *testing.T) {
		t.Parallel()
		db, _ := migrated(t)
		in := keeping(t, db)
		tx, err := db.Pool().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(t.Context(), `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
values ('acme', 'POST /v1/charges', 'k1', 'f', 202, '', '', clock_timestamp() + interval '1 hour')`)
		if err != nil {
			t.Fatal(err)
		}
		var work errgroup.Group
		work.Go(func() error {
			_, err := in.AcceptCharge(t.Context(), acme(), request("k1", "f"), mug())
			return err
		})
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := work.Wait(); err != nil {
			t.Fatal(err)
		}
		wantCharges(t, db, 1)
	})
}

// TestLostAnswers: the connection is cut around the commit, so that nobody can
// tell from it whether there is a charge. The key can.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		side     failpoint.Side
		replayed bool
	}{
		{"a commit that nobody heard of is settled by its key", failpoint.After, true},
		{"a commit that never reached the server is made", failpoint.Before, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			direct, address := migrated(t)
			proxy := failpoint.StartCutter(t, address)
			in := keeping(t, open(t, proxy.URL(), postgres.Options{}))
			proxy.Arm(test.side, 3) // a read is a batch of two
			got := accept(t, in, request("k1", "f"))
			if got.Replayed != test.replayed || proxy.Cuts() != 1 {
				t.Errorf("replayed %v after %d cuts", got.Replayed, proxy.Cuts())
			}
			wantCharges(t, direct, 1)
			again := accept(t, keeping(t, direct), request("k1", "f"))
			if diff := cmp.Diff(got.Answer, again.Answer); diff != "" {
				t.Errorf("answer (-first +again):\n%s", diff)
			}
		})
	}

	for _, test := range []struct {
		name string
		side failpoint.Side
		left int
	}{
		{"without a server the outcome of a commit that nobody heard of stays open", failpoint.After, 1},
		{"without a server the outcome of a commit that never arrived stays open", failpoint.Before, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			direct, address := migrated(t)
			proxy := failpoint.StartCutter(t, address)
			in := keeping(t, open(t, proxy.URL(), postgres.Options{MaxConns: 1}))
			proxy.ArmLast(test.side, 3)
			_, err := in.AcceptCharge(t.Context(), acme(), request("k1", "f"), mug())
			if !errors.Is(err, idempotency.ErrUnavailable) {
				t.Errorf("the error is %v, want ErrUnavailable", err)
			}
			wantCharges(t, direct, test.left)
			accept(t, keeping(t, direct), request("k1", "f"))
			wantCharges(t, direct, 1)
		})
	}
}

func TestStorms(t *testing.T) {
	t.Parallel()

	// stormy makes the next commits fail as if they had lost a race: numbers of a
	// sequence are not given back by a rollback, so it counts the tries.
	const stormy = `
create sequence storms;
create function storm() returns trigger language plpgsql security definer as $$
begin
  if nextval('storms') <= %d then
    raise 'planted' using errcode = '%s';
  end if;
  return new;
end
$$;
create trigger storm before insert on ledger_events for each row execute function storm()`
	plant := func(t *testing.T, db *postgres.DB, tries int, code string) {
		t.Helper()
		if _, err := db.Pool().Exec(t.Context(), fmt.Sprintf(stormy, tries, code)); err != nil {
			t.Fatal(err)
		}
	}

	for _, code := range []string{"40001", "40P01", "57014", "57P01"} {
		t.Run("a commit that lost a race by "+code+" is made again", func(t *testing.T) {
			t.Parallel()
			db := pgtest.Reused(t)
			plant(t, db, 3, code)
			accept(t, keeping(t, db), request("k1", "f"))
			wantCharges(t, db, 1)
		})
	}

	t.Run("but not for ever", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		plant(t, db, 1000, "40001")
		_, err := keeping(t, db).AcceptCharge(t.Context(), acme(), request("k1", "f"), mug())
		if !errors.Is(err, idempotency.ErrUnavailable) {
			t.Errorf("the error is %v, want ErrUnavailable", err)
		}
		var tries int
		if err := db.QueryRow(t.Context(), `select last_value from storms`).Scan(&tries); err != nil || tries != 4 {
			t.Errorf("%d tries: %v", tries, err)
		}
		wantCharges(t, db, 0)
	})

	t.Run("and not for a client that hung up", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := keeping(t, db).AcceptCharge(ctx, acme(), request("k1", "f"), mug()); !errors.Is(err, idempotency.ErrUnavailable) {
			t.Errorf("the error is %v, want ErrUnavailable", err)
		}
		wantCharges(t, db, 0)
	})
}
