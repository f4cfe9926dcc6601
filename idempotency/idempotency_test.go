package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

const insertEffect = `insert into outbox (topic, message_id, payload, metadata) values ('t', 'effect', '', '{}')`

// effect decides on the answer and one effect that is not unique.
func effect(_ context.Context, b *pgx.Batch, _ time.Time) (idempotency.Answer, error) {
	b.Queue(insertEffect)
	return theAnswer(), nil
}

func receive(t *testing.T, r idempotency.Receiver, work idempotency.Work) idempotency.Result {
	t.Helper()
	got, err := r.Receive(t.Context(), theKey(), theRequest(), work)
	testdb.Must(t, err)
	return got
}

func TestReceive(t *testing.T) {
	t.Parallel()

	t.Run("a request is carried out once, and its repetition gets the stored answer", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		r := idempotency.Receiver{DB: db, Retention: time.Hour}
		first, again := receive(t, r, effect), receive(t, r, effect)
		if diff := cmp.Diff(theAnswer(), first.Answer); diff != "" || first.Replayed {
			t.Errorf("replayed %v, answer (-want +got):\n%s", first.Replayed, diff)
		}
		first.Replayed = true
		if diff := cmp.Diff(first, again); diff != "" {
			t.Errorf("again (-first +again):\n%s", diff)
		}
		wantEffects(t, db, 1)
	})

	t.Run("an answer is kept for the retention, by the database's clock", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		for _, test := range []struct{ retention, want time.Duration }{{90 * time.Minute, 90 * time.Minute}, {0, 24 * time.Hour}, {-1, 24 * time.Hour}} {
			key := keyOf(test.retention.String())
			before := fromNow(t, db, -time.Second)
			got, err := idempotency.Receiver{DB: db, Retention: test.retention}.Receive(t.Context(), key, theRequest(), effect)
			after := fromNow(t, db, time.Second)
			if from := got.ExpiresAt.Add(-test.want); err != nil || from.Before(before) || from.After(after) {
				t.Errorf("retention %v: kept until %v, want %v after a moment between %v and %v: %v",
					test.retention, got.ExpiresAt, test.want, before, after, err)
			}
			if record, _ := readKey(t, db, key); !record.ExpiresAt.Equal(got.ExpiresAt) {
				t.Errorf("it says %v, and %v is stored", got.ExpiresAt, record.ExpiresAt)
			}
		}
	})

	t.Run("an error of the work stores nothing and leaves the key free", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		r := idempotency.Receiver{DB: db}
		planted := errors.New("planted")
		_, err := r.Receive(t.Context(), theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
			_, _ = effect(ctx, b, now)
			return idempotency.Answer{}, planted
		})
		if !errors.Is(err, planted) || errors.Is(err, idempotency.ErrUnknown) {
			t.Errorf("the error is %v", err)
		}
		wantEffects(t, db, 0)
		if got := receive(t, r, effect); got.Replayed {
			t.Error("it was answered from the key")
		}
	})

	for _, test := range []struct {
		name string
		lost int // races
		want error
	}{
		{"the work runs again after a lost race, with the same time", 3, nil},
		{"the work that loses every race ends as unavailable", 16, idempotency.ErrUnknown},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Reused(t)
			var times []time.Time
			r := idempotency.Receiver{DB: db, IsConflict: func(err error) bool { return groupcommit.Constraint(err) == "merchants_pkey" }}
			_, err := r.Receive(t.Context(), theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
				if times = append(times, now); len(times) <= test.lost {
					b.Queue(`insert into merchants (merchant_id) values ('acme'), ('acme')`)
				}
				return effect(ctx, b, now)
			})
			calls := min(test.lost+1, 16)
			if !errors.Is(err, test.want) || len(times) != calls || !times[0].Equal(times[calls-1]) {
				t.Errorf("decided at %v: %v", times, err)
			}
			wantEffects(t, db, calls-test.lost)
		})
	}

	t.Run("a taken key that the work itself claims is a refusal", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		testdb.Must(t, claim(t, db, keyOf("foreign"), theAnswer(), inAnHour()))
		calls := 0
		_, err := idempotency.Receiver{DB: db}.Receive(t.Context(), theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
			calls++
			idempotency.Claim(b, keyOf("foreign"), theRequest(), theAnswer(), now.Add(time.Hour))
			return effect(ctx, b, now)
		})
		if !idempotency.IsTaken(err) || errors.Is(err, idempotency.ErrUnknown) || calls != 1 {
			t.Errorf("%d calls, %v", calls, err)
		}
		wantEffects(t, db, 1)
		if _, found := readKey(t, db, theKey()); found {
			t.Error("the key is taken")
		}
	})
}

func TestReceive_besideARivalInFlight(t *testing.T) {
	t.Parallel()

	t.Run("a request is refused as in flight after its wait", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		rival := rivalInFlight(t, db)
		r := idempotency.Receiver{DB: db, Wait: 20 * time.Millisecond}
		if _, err := r.Receive(t.Context(), theKey(), theRequest(), effect); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("the error is %v, want ErrInFlight", err)
		}
		testdb.Must(t, rival.Commit(t.Context()))
		if got := receive(t, r, effect); !got.Replayed {
			t.Error("it was done again")
		}
		wantEffects(t, db, 0)
	})

	t.Run("a request waits for the rival and replays its answer", func(t *testing.T) {
		t.Parallel()
		db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{LockTimeout: time.Millisecond})
		rival := rivalInFlight(t, db)
		var got idempotency.Result
		var waiting errgroup.Group
		waiting.Go(func() (err error) {
			got, err = idempotency.Receiver{DB: db, Wait: idempotency.MaxWait}.Receive(t.Context(), theKey(), theRequest(), effect)
			return err
		})
		await.Blocked(t, db, 1)
		testdb.Must(t, rival.Commit(t.Context()))
		if err := waiting.Wait(); err != nil || !got.Replayed {
			t.Errorf("%+v, %v", got, err)
		}
		wantEffects(t, db, 0)
	})

	t.Run("a request is refused at once when as many wait as may", func(t *testing.T) {
		t.Parallel()
		db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{LockTimeout: time.Millisecond})
		rivalInFlight(t, db)
		r := idempotency.Receiver{DB: db, Wait: 20 * time.Millisecond, Waiters: make(chan struct{}, 1)}
		if _, err := r.Receive(t.Context(), theKey(), theRequest(), effect); !errors.Is(err, idempotency.ErrInFlight) || errors.Is(err, idempotency.ErrCrowded) {
			t.Errorf("with a free place the error is %v", err)
		}
		r.Waiters <- struct{}{}
		if _, err := r.Receive(t.Context(), theKey(), theRequest(), effect); !errors.Is(err, idempotency.ErrCrowded) || !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("without one the error is %v", err)
		}
		wantEffects(t, db, 0)
	})

	t.Run("a request whose work panics releases its slot", func(t *testing.T) {
		t.Parallel()
		db := testdb.OpenAt(t, testdb.URL(t), postgres.Options{LockTimeout: time.Millisecond})
		rivalInFlight(t, db)
		r := idempotency.Receiver{DB: db, Wait: 20 * time.Millisecond, Waiters: make(chan struct{}, 1)}
		calls := 0
		func() {
			defer func() { _ = recover() }()
			_, err := r.Receive(t.Context(), theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
				if calls++; calls == 2 {
					panic("planted")
				}
				return effect(ctx, b, now)
			})
			t.Errorf("the error is %v, want a panic", err)
		}()
		if calls != 2 || len(r.Waiters) != 0 {
			t.Errorf("after %d calls %d requests wait", calls, len(r.Waiters))
		}
	})

	t.Run("a lock that the work waits for is not a rival", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		const register = `insert into merchants (merchant_id) values ('acme')`
		testdb.Begin(t, db.Pool(), register)
		r := idempotency.Receiver{DB: db, Wait: 20 * time.Millisecond}
		calls := 0
		_, err := r.Receive(t.Context(), theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
			calls++
			b.Queue(register)
			return effect(ctx, b, now)
		})
		if !errors.Is(err, idempotency.ErrUnknown) || errors.Is(err, idempotency.ErrInFlight) || calls != 16 {
			t.Errorf("%d calls, %v", calls, err)
		}
		wantEffects(t, db, 0)
	})
}

// TestReceive_overACutConnection cuts the connection around the commit, so that
// its result is unknown. The key has it.
func TestReceive_overACutConnection(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		side     failpoint.Side
		last     bool // no connection can be acquired afterwards
		err      error
		replayed bool
	}{
		{"a commit whose result is lost is found by its key", failpoint.After, false, nil, true},
		{"a commit that never reached the server is sent again", failpoint.Before, false, nil, false},
		{"without a server the outcome stays unknown", failpoint.After, true, idempotency.ErrUnknown, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			url := testdb.URL(t)
			direct, proxy := testdb.OpenAt(t, url, postgres.Options{}), failpoint.StartCutter(t, url)
			r, arm := idempotency.Receiver{DB: testdb.OpenAt(t, proxy.URL(), postgres.Options{MaxConns: 1})}, proxy.Arm
			if test.last {
				arm = proxy.ArmLast
			}
			arm(test.side, 2)
			got, err := r.Receive(t.Context(), theKey(), theRequest(), effect)
			if !errors.Is(err, test.err) || got.Replayed != test.replayed || proxy.Cuts() != 1 {
				t.Errorf("replayed %v after %d cuts: %v", got.Replayed, proxy.Cuts(), err)
			}
			if got := receive(t, idempotency.Receiver{DB: direct}, effect); !got.Replayed {
				t.Error("the same request is done again")
			}
			wantEffects(t, direct, 1)
		})
	}

	t.Run("an error after an unknown commit is unavailable", func(t *testing.T) {
		t.Parallel()
		url := testdb.URL(t)
		proxy := failpoint.StartCutter(t, url)
		r := idempotency.Receiver{DB: testdb.OpenAt(t, proxy.URL(), postgres.Options{})}
		proxy.Arm(failpoint.Before, 2)
		planted := errors.New("planted")
		calls := 0
		_, err := r.Receive(t.Context(), theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
			if calls++; calls == 2 {
				return idempotency.Answer{}, planted
			}
			return effect(ctx, b, now)
		})
		if !errors.Is(err, planted) || !errors.Is(err, idempotency.ErrUnknown) {
			t.Errorf("%d calls, %v", calls, err)
		}
	})

	t.Run("a caller that gives up gets unavailable, and its commit continues", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		ctx, cancel := context.WithCancel(t.Context())
		r := idempotency.Receiver{DB: db}
		_, err := r.Receive(ctx, theKey(), theRequest(), func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
			cancel()
			return effect(ctx, b, now)
		})
		if err != nil {
			t.Errorf("a commit that was begun ends with %v", err)
		}
		wantEffects(t, db, 1)
		_, err = r.Receive(ctx, theKey(), theRequest(), effect)
		if !errors.Is(err, idempotency.ErrUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
	})
}
