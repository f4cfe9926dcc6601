package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func theKey() idempotency.Key {
	return idempotency.Key{Scope: "acme", Operation: "POST /v1/charges", Value: "k1"}
}

func theAnswer() idempotency.Answer {
	return idempotency.Answer{
		StatusCode: http.StatusAccepted, ContentType: "application/json", Location: "/v1/charges/ch_1",
		Body: []byte("{\"id\": \"ch_1\"}\n\x00\xff"),
	}
}

func theRequest() idempotency.Request {
	return idempotency.Request{Fingerprint: []byte("fingerprint"), Canonical: []byte(`{"amount":1}`)}
}

// claim commits a key together with an effect that is not unique.
func claim(t *testing.T, db *postgres.DB, key idempotency.Key, answer idempotency.Answer, expires time.Time) error {
	t.Helper()
	b := &pgx.Batch{}
	idempotency.Claim(b, key, theRequest(), answer, expires)
	b.Queue(`insert into outbox (topic, message_id, payload, metadata) values ('t', 'effect', '', '{}')`)
	return db.Commit(t.Context(), b)
}

func look(t *testing.T, q postgres.Querier, key idempotency.Key) (idempotency.Record, bool) {
	t.Helper()
	state, err := idempotency.ReadKey(t.Context(), q, key)
	if err != nil {
		t.Fatal(err)
	}
	if since := time.Since(state.Now).Abs(); since > time.Hour {
		t.Errorf("the database's time is %v away", since)
	}
	return state.Record, state.Found
}

func wantEffects(t *testing.T, db *postgres.DB, want int) {
	t.Helper()
	var got int
	if err := db.QueryRow(t.Context(), `select count(*) from outbox`).Scan(&got); err != nil || got != want {
		t.Errorf("%d effects, want %d: %v", got, want, err)
	}
}

func inAnHour() time.Time { return time.Now().Add(time.Hour).Truncate(time.Second) }

func TestClaim(t *testing.T) {
	t.Parallel()

	t.Run("a key that nobody used is free", func(t *testing.T) {
		t.Parallel()
		if record, found := look(t, pgtest.Reused(t), theKey()); found || len(record.Body) > 0 || len(record.Fingerprint) > 0 {
			t.Errorf("found %v: %+v", found, record)
		}
	})

	t.Run("its answer is kept byte for byte", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		expires := inAnHour()
		if err := claim(t, db, theKey(), theAnswer(), expires); err != nil {
			t.Fatal(err)
		}
		record, found := look(t, db, theKey())
		want := idempotency.Record{Answer: theAnswer(), Fingerprint: theRequest().Fingerprint, Canonical: theRequest().Canonical, ExpiresAt: expires}
		if diff := cmp.Diff(want, record); diff != "" || !found {
			t.Errorf("found %v (-want +got):\n%s", found, diff)
		}
	})

	t.Run("an answer may be empty", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		if err := claim(t, db, theKey(), idempotency.Answer{StatusCode: http.StatusNoContent}, inAnHour()); err != nil {
			t.Fatal(err)
		}
		if record, found := look(t, db, theKey()); !found || record.StatusCode != http.StatusNoContent || len(record.Body) != 0 || record.Location != "" {
			t.Errorf("found %v: %+v", found, record)
		}
	})

	t.Run("a key in another place is another key", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		if err := claim(t, db, theKey(), theAnswer(), inAnHour()); err != nil {
			t.Fatal(err)
		}
		scope, operation, value := theKey(), theKey(), theKey()
		scope.Scope, operation.Operation, value.Value = "globex", "POST /v1/charges/{id}/refunds", "K1"
		for _, key := range []idempotency.Key{scope, operation, value} {
			if _, found := look(t, db, key); found {
				t.Errorf("%+v is taken", key)
			}
			if err := claim(t, db, key, theAnswer(), inAnHour()); err != nil {
				t.Errorf("%+v: %v", key, err)
			}
		}
		wantEffects(t, db, 4)
	})

	t.Run("a taken key takes the whole batch with it", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		for i := range 3 {
			err := claim(t, db, theKey(), theAnswer(), inAnHour())
			if taken := idempotency.IsTaken(err); taken != (i > 0) || (err == nil) == (i > 0) {
				t.Errorf("claim %d: taken %v, %v", i+1, taken, err)
			}
		}
		wantEffects(t, db, 1)
	})

	t.Run("an expired key is taken", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		if err := claim(t, db, theKey(), theAnswer(), time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := claim(t, db, theKey(), theAnswer(), inAnHour()); !idempotency.IsTaken(err) {
			t.Errorf("the error is %v", err)
		}
		wantEffects(t, db, 1)
	})

	t.Run("of sixteen at once one wins", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		var won atomic.Int32
		var rivals errgroup.Group
		for range 16 {
			rivals.Go(func() error {
				err := claim(t, db, theKey(), theAnswer(), inAnHour())
				if err == nil {
					won.Add(1)
				}
				if err != nil && !idempotency.IsTaken(err) {
					return err
				}
				return nil
			})
		}
		if err := rivals.Wait(); err != nil {
			t.Error(err)
		}
		if won.Load() != 1 {
			t.Errorf("%d won", won.Load())
		}
		wantEffects(t, db, 1)
	})

	t.Run("nothing else is a taken key", func(t *testing.T) {
		t.Parallel()
		for _, err := range []error{nil, errors.New("something"), postgres.ErrUnknown, idempotency.ErrReused} {
			if idempotency.IsTaken(err) {
				t.Errorf("%v is taken for a taken key", err)
			}
		}
	})
}

func TestClaimBesideAnotherUnderWay(t *testing.T) {
	t.Parallel()

	t.Run("is refused once that one has committed", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		first := underWay(t, db)
		second := make(chan error, 1)
		go func() { second <- claim(t, db, theKey(), theAnswer(), inAnHour()) }()
		await.Blocked(t, db, 1)
		if _, found := look(t, db, theKey()); found {
			t.Error("an answer is seen before its commit")
		}
		if err := first.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-second; !idempotency.IsTaken(err) {
			t.Errorf("the error is %v, want a taken key", err)
		}
		wantEffects(t, db, 0)
	})

	t.Run("wins once that one has rolled back", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		first := underWay(t, db)
		second := make(chan error, 1)
		go func() { second <- claim(t, db, theKey(), theAnswer(), inAnHour()) }()
		await.Blocked(t, db, 1)
		if err := first.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-second; err != nil {
			t.Error(err)
		}
		wantEffects(t, db, 1)
	})

	t.Run("gives up after the lock time-out", func(t *testing.T) {
		t.Parallel()
		address := pgtest.URL(t)
		db, err := postgres.Open(t.Context(), address, postgres.Options{
			LockTimeout: 50 * time.Millisecond, AllowPlaintext: true, AllowUnsafeDurability: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(db.Close)
		underWay(t, db)
		err = claim(t, db, theKey(), theAnswer(), inAnHour())
		if !postgres.IsLockTimeout(err) || idempotency.IsTaken(err) {
			t.Errorf("the error is %v, want a lock time-out", err)
		}
		wantEffects(t, db, 0)
	})
}

// underWay claims the key in a transaction that stays open.
func underWay(t *testing.T, db *postgres.DB) pgx.Tx {
	t.Helper()
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	b := &pgx.Batch{}
	idempotency.Claim(b, theKey(), theRequest(), theAnswer(), inAnHour())
	if err := tx.SendBatch(t.Context(), b).Close(); err != nil {
		t.Fatal(err)
	}
	return tx
}

func TestReadKey_writesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Reused(t)
	tx, err := db.Pool().BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	look(t, tx, theKey())
}

func TestReadKey_namesTheOperationInItsError(t *testing.T) {
	t.Parallel()
	db := pgtest.Reused(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	state, err := idempotency.ReadKey(ctx, db, theKey())
	if state.Found || !errors.Is(err, context.Canceled) || err.Error() != "read idempotency keys: context canceled" {
		t.Errorf("%+v, %v", state, err)
	}
}
