package defects_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
)

func succeed() error { return nil }
func fail() error    { return errBroken }

// D8 (Java): the key is unique for each operation. The document stores neither whose key it
// is nor what was asked under it, so any request under a known key is a duplicate.

// chargeOfD8 is the document's handler of a request, without D1.
func chargeOfD8(ctx context.Context, db *pgxpool.Pool, r request) (answer string, err error) {
	taken, err := db.Exec(ctx, `insert into idempotency_keys values ('createPayment', $1, 'SUCCEEDED') on conflict do nothing`, r.key)
	if err != nil || taken.RowsAffected() == 0 {
		return "duplicate accepted", err
	}
	_, err = db.Exec(ctx, pay, r.key)
	return "captured", err
}

// keysOfJava is the table of keys of the Java document.
const keysOfJava = `
create table idempotency_keys (
  operation   text not null,
  idem_key    text not null,
  status      text not null,
  result_code int,
  unique (operation, idem_key)
)`

func TestD8_anyRequestUnderAKnownKeyIsADuplicate(t *testing.T) {
	t.Parallel()
	first := request{"acme", "k1", 100}
	for name, test := range map[string]struct {
		second   request
		err      error // of the second with payonce
		payments int   // of both with payonce
	}{
		"a request of another tenant passes for a duplicate":    {request{"globex", "k1", 100}, nil, 2},
		"a request with another payload passes for a duplicate": {request{"acme", "k1", 250}, idempotency.ErrReused, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			naive := miniature(t, keysOfJava, payments)
			for i, want := range []string{"captured", "duplicate accepted"} {
				answer, err := chargeOfD8(t.Context(), naive, []request{first, test.second}[i])
				if answer != want || err != nil {
					t.Errorf("the document answers %q, %v, want %q", answer, err, want)
				}
			}
			wantPayments(t, naive, 1)

			db := withPackages(t)
			wantError(t, "the first request", nil, payOnce(t, db, first, succeed).err)
			wantError(t, "the second request", test.err, payOnce(t, db, test.second, succeed).err)
			wantPayments(t, db, test.payments)
		})
	}
}

// D9 (Java): the handler calls the provider inside the transaction of its key. The call
// gets the request and not the key. A rollback takes the key back and not the charge, and
// the transaction, with its connection, stays open for as long as the provider takes.

// charges are the provider's: one for each key, and any number without a key.
const charges = `create table charges (key text unique)`

// charge is a call to the provider, during which other transactions see so many keys.
func charge(t *testing.T, db *pgxpool.Pool, key *string, visible int) {
	t.Helper()
	wantCount(t, db, "visible keys during the call", visible, `select count(*) from idempotency_keys`)
	exec(t, db, `insert into charges values ($1) on conflict do nothing`, key)
}

func TestD9_aRollbackBehindTheProvidersCallChargesTwice(t *testing.T) {
	t.Parallel()
	naive := miniature(t, keysOfJava, payments, charges)
	for _, failure := range []error{errBroken, nil} {
		wantError(t, "the document's attempt", failure, pgx.BeginFunc(t.Context(), naive, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `insert into idempotency_keys values ('createPayment', 'k1', 'PENDING')`); err != nil {
				return err
			}
			charge(t, naive, nil, 0)
			_, err := tx.Exec(t.Context(), pay, "k1")
			return errors.Join(err, failure)
		}))
	}
	wantPayments(t, naive, 1)
	wantCount(t, naive, "the document's charges", 2, `select count(*) from charges`)

	// payonce commits the request, calls after that, and repeats the call under one key.
	db := withPackages(t, charges)
	receive(t, db, func(d *inbox.Delivery) error {
		charge(t, db.Pool(), &d.ID, 1)
		if d.Attempt == 1 {
			return errBroken
		}
		return nil
	})
	send(t, db, "m1")
	await.Row(t, db, `select count(*) = 1 from payments`)
	wantCount(t, db, "payonce's charges", 1, `select count(*) from charges`)
}

// D10 (Python): the receiver checks whether a message is done, and then takes its lock. If a
// rival handles the message and frees the lock between the two, the lock is free again, and
// the receiver does not check a second time.

func TestD10_aRivalThatFinishesBetweenCheckAndLockIsNotSeen(t *testing.T) {
	t.Parallel()
	naive, store := miniature(t, payments), newCache()
	receive := func() error { return store.receive("m1", func() error { exec(t, naive, pay, "m1"); return nil }) }
	store.checked = func() {
		store.checked = nil
		wantError(t, "the document's rival", nil, receive())
	}
	wantError(t, "the document's receiver", nil, receive())
	wantPayments(t, naive, 2)

	winner, loser, db := rivals(t, succeed)
	if want := (outcome{"receipt of k1", true, nil}); loser != want || winner.replayed || winner.receipt != want.receipt {
		t.Errorf("payonce gives the rivals %+v and %+v, want one receipt", winner, loser)
	}
	wantPayments(t, db, 1)
}

// D11 (Python): a function that is decorated has a lock too. A call that does not get it
// waits for half a second and returns the stored result, whether there is one or not.

// decorated is the document's decorator around a function. A call without the lock comes
// to its stored result when the half second has passed.
func (c *cache) decorated(key string, do func() (string, error)) (result string, err error) {
	if result, err = c.process(key, do); errors.Is(err, errLocked) {
		result, _ = c.get("processed:" + key)
		return result, nil
	}
	return result, err
}

func TestD11_theLoserGetsNoResultAndNoError(t *testing.T) {
	t.Parallel()
	for _, end := range []func() error{succeed, fail} { // of the winner's work
		store := newCache()
		finish := hold(t, func(handle func() error) error {
			_, err := store.decorated("k1", func() (string, error) { return "receipt of k1", handle() })
			wantError(t, "the document's winner", end(), err)
			return err
		}, end)
		if result, err := store.decorated("k1", nil); result != "" || err != nil {
			t.Errorf("the document gives the loser %q, %v, want nothing", result, err)
		}
		finish()

		_, loser, db := rivals(t, end)
		if want := (outcome{"receipt of k1", end() == nil, nil}); loser != want {
			t.Errorf("payonce gives the loser %+v, want %+v", loser, want)
		}
		wantPayments(t, db, 1)
	}
}

// rivals are two calls under one key. The work of the winner is held until the loser waits
// for it. Then it ends as end does.
func rivals(t *testing.T, end func() error) (winner, loser outcome, db *postgres.DB) {
	t.Helper()
	db = withPackages(t)
	r := request{"acme", "k1", 100}
	finish := hold(t, func(handle func() error) error { winner = payOnce(t, db, r, handle); return winner.err }, end)
	ended := process(func() { loser = payOnce(t, db, r, succeed) })
	await.Blocked(t, db, 1)
	finish()
	await.Receive(t, "the loser's end", ended)
	return winner, loser, db
}

// D12 (Python): a batch returns the known messages first, so a result is not at its
// message's place. A message that failed is returned as one that has no result, and its
// error is nowhere.

// batch is the document's. What it does concurrently changes no result.
func (c *cache) batch(requests []request, handle func(request) (string, error)) (results []string) {
	for _, duplicate := range []bool{true, false} {
		for _, r := range requests {
			if _, done := c.get("processed:" + r.key); done == duplicate {
				receipt, _ := c.process(r.key, func() (string, error) { return handle(r) })
				results = append(results, fmt.Sprintf("%s: %q %v", r.key, receipt, duplicate))
			}
		}
	}
	return results
}

func TestD12_aBatchMovesResultsAndLosesErrors(t *testing.T) {
	t.Parallel()
	requests := []request{{key: "new"}, {key: "known"}, {key: "bad"}, {key: "silent"}}
	receipts, errs := map[string]string{"new": "receipt", "known": "receipt"}, map[string]error{"bad": errBroken}
	handle := func(r request) (string, error) { return receipts[r.key], errs[r.key] }

	store := newCache()
	store.batch(requests[1:2], handle)
	wrong := []string{`known: "receipt" true`, `new: "receipt" false`, `bad: "" false`, `silent: "" false`}
	if got := store.batch(requests, handle); !slices.Equal(got, wrong) {
		t.Errorf("the document's results are %s, want %s", got, wrong)
	}

	db := withPackages(t)
	work := func(r request) outcome { return payOnce(t, db, r, func() error { return errs[r.key] }) }
	work(requests[1])
	var got []outcome
	for _, r := range requests {
		got = append(got, work(r))
	}
	right := []outcome{{"receipt of new", false, nil}, {"receipt of known", true, nil}, {"", false, errBroken}, {"receipt of silent", false, nil}}
	if !slices.Equal(got, right) {
		t.Errorf("payonce's results are %v, want %v", got, right)
	}
	wantPayments(t, db, 3)
}

// D13 (TypeScript): the receiver with a cache writes its result to the cache after COMMIT,
// where a failure of the cache is a failure of the message. The message is done, and each
// of its deliveries fails for as long as the cache does.

// receiveOfD13 is the document's receiver while its cache has nothing. filled is how the
// write to the cache ends.
func receiveOfD13(ctx context.Context, db *pgxpool.Pool, id string, filled error) error {
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		taken, err := tx.Exec(ctx, `insert into processed_messages values ($1, 'completed') on conflict do nothing`, id)
		if err != nil || taken.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, pay, id)
		return err
	})
	if err == nil {
		err = filled
	}
	return err
}

func TestD13_aMessageThatIsDoneFailsWithTheCache(t *testing.T) {
	t.Parallel()
	naive := miniature(t, processed, payments)
	for _, failure := range []error{errBroken, errBroken, nil} {
		wantError(t, "the document's delivery", failure, receiveOfD13(t.Context(), naive, "m1", failure))
		wantPayments(t, naive, 1)
	}

	db, given := withPackages(t), 0
	fill := func(idempotency.KeyState) error { given++; return errBroken }
	read := func(ctx context.Context, q groupcommit.Querier, key idempotency.Key) (idempotency.KeyState, error) {
		state, err := idempotency.ReadKey(ctx, q, key)
		if state.Found {
			_ = fill(state) // a failure of the cache is no failure of the read
		}
		return state, err
	}
	key, input, err := identify(request{"acme", "k1", 100})
	must(t, err)
	for range 3 {
		_, err := idempotency.Receive(t.Context(), db, key, input, idempotency.Options{Read: read},
			func(_ context.Context, b *pgx.Batch, _ time.Time) (idempotency.Answer, error) {
				b.Queue(pay, key.Value)
				return idempotency.Answer{StatusCode: http.StatusCreated}, nil
			})
		wantError(t, "payonce's answer", nil, err)
	}
	wantPayments(t, db, 1)
	if given != 2 {
		t.Errorf("the cache was given %d answers", given)
	}
}

// D14 (Java): the consumer keeps its keys for three days. It reads a log that keeps messages
// for seven days, as Kafka does by default: a group that starts at the log's beginning on
// the sixth day gets messages whose keys are gone.

func TestD14_aLogOutlivesTheKeysOfItsMessages(t *testing.T) {
	t.Parallel()
	naive := miniature(t, payments, `create table idempotency_keys (idem_key text primary key, expires_at timestamptz not null)`)
	first := time.Date(2026, time.January, 1, 12, 0, 0, 0, time.UTC)
	for _, day := range []time.Time{first, first.AddDate(0, 0, 5)} {
		exec(t, naive, `delete from idempotency_keys where expires_at < $1`, day)
		if exec(t, naive, `insert into idempotency_keys values ('m1', $1) on conflict do nothing`, day.AddDate(0, 0, 3)) == 1 {
			exec(t, naive, pay, "m1")
		}
	}
	wantPayments(t, naive, 2)

	db, r := withPackages(t), request{"acme", "m1", 100}
	wantError(t, "payonce's first call", nil, payOnce(t, db, r, succeed).err)
	exec(t, db.Pool(), `update idempotency_keys set expires_at = expires_at - interval '5 days'`)
	if expired, err := idempotency.ExpireKeys(t.Context(), db, 100); expired != 1 || err != nil {
		t.Errorf("payonce expires %d keys: %v", expired, err)
	}
	wantError(t, "payonce's call after five days", idempotency.ErrExpired, payOnce(t, db, r, succeed).err)
	wantPayments(t, db, 1)
}

// D15 (Python): above its threshold of errors the last sample answers with a fallback and
// calls the operation no more. Only calls change the rate of errors, so it stays.

// fallingBack is the document's processor.
type fallingBack struct{ calls, failures int }

func (p *fallingBack) process(operation func() error) string {
	if p.calls > 0 && 2*p.failures >= p.calls {
		return "fallback"
	}
	p.calls++
	if err := operation(); err != nil {
		p.failures++
		return "fallback"
	}
	return "success"
}

func TestD15_aProcessorThatFallsBackNeverRecovers(t *testing.T) {
	t.Parallel()
	ids := []string{"m1", "m2", "m3", "m4"} // the first call fails, and no other
	naive, p := miniature(t, payments), &fallingBack{}
	for i, id := range ids {
		answer := p.process(func() error {
			if i == 0 {
				return errBroken
			}
			exec(t, naive, pay, id)
			return nil
		})
		if answer != "fallback" {
			t.Errorf("the document answers %s with %s", id, answer)
		}
	}
	wantPayments(t, naive, 0)

	db := withPackages(t)
	receive(t, db, func(d *inbox.Delivery) error {
		if d.ID == ids[0] && d.Attempt == 1 {
			return errBroken
		}
		return nil
	})
	send(t, db, ids...)
	await.Row(t, db, `select count(*) = 4 from payments`)
	wantCount(t, db, "attempts of the message that failed", 2, `select attempts from inbox where message_id = $1`, ids[0])
}
